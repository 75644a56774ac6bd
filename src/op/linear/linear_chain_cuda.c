/* Launches of chains of products: see linear_chain_cuda.h. */
#include "op/linear/linear_chain_cuda.h"

#include <stdio.h>

/* Stages that fit into a multiprocessor's shared memory: of weights, an even number because
 * chain_attention.cuh needs one, and of x, CHAIN_X_DEPTHS deep. And how many of weights are on
 * their way at a time, and before the first eight of a step. */
static const struct {
    int columns, weights, x, in_flight, first_in_flight;
} stages[] = {{16, 10, 8, 4, 2}, {32, 8, 6, 8, 8}, {64, 6, 4, 6, 6}};

void cuda_linear_chain_set_stages(linear_chain *chain, int columns)
{
    int form = 0;
    while (stages[form].columns < columns)
        form++;
    chain->weight_stages = stages[form].weights;
    chain->x_stages = stages[form].x;
    chain->in_flight = stages[form].in_flight;
    chain->first_in_flight = stages[form].first_in_flight;
    chain->n_first = 8;
}

/* The image for a chain (src/gpu_images.cmake). */
static const char *image_of(const linear_chain *chain)
{
    enum { HEADS_OF_64, FAMILIES, HEADS_OF_128 };
    static const char *const images[][3] = {
        {"linear_chain", "linear_chain_families", "linear_chain_128"},
        {"linear_chain_packed", "linear_chain_packed", "linear_chain_packed_128"},
        {"linear_chain_f8", "linear_chain_f8_families", "linear_chain_f8_128"},
        {"linear_chain_ranks", "linear_chain_ranks_families", "linear_chain_ranks_128"},
    };
    const int form = chain->packed == CHAIN_PACKED_IN_F8 ? 2
                     : chain->reduces                    ? 3
                     : chain->packed                     ? 1
                                                         : 0;
    if (chain->wide) return "linear_chain_wide_128";
    return images[form][chain->head == 128 ? HEADS_OF_128
                        : chain->families  ? FAMILIES
                                           : HEADS_OF_64];
}

qp_status cuda_linear_chain(cuda_ops *ops, const linear_chain *chain, int columns, qp_error *error)
{
    static const char common[] = "linear_chain";
    cuda_start start = {.image = image_of(chain),
                        .shared_most = ops->device->shared_bytes,
                        .grid = {(unsigned)ops->device->n_multiprocessors, 1, 1},
                        .threads = CHAIN_THREADS,
                        .shared_bytes = (unsigned)CHAIN_SHARED(columns, chain->weight_stages,
                                                               chain->x_stages, chain->wide),
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_%s_%d%s", common, columns,
             start.image + sizeof common - 1);
    return cuda_ops_start(ops, &start, (const cuda_argument[]){{chain, sizeof *chain}, {0}}, error);
}
