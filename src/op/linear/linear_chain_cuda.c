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

qp_status cuda_linear_chain(cuda_ops *ops, const linear_chain *chain, int columns, qp_error *error)
{
    static const char *const images[5][2] = {{"linear_chain", "linear_chain_128"},
                                             {"linear_chain_packed", "linear_chain_packed_128"},
                                             {"linear_chain_ranks", "linear_chain_ranks_128"},
                                             {"linear_chain_wide_128", "linear_chain_wide_128"},
                                             {"linear_chain_f8", "linear_chain_f8_128"}};
    static const char *const forms[5] = {"", "_packed", "_ranks", "_wide", "_f8"};
    const int form = chain->packed == CHAIN_PACKED_IN_F8 ? 4
                     : chain->wide                       ? 3
                     : chain->reduces                    ? 2
                     : chain->packed                     ? 1
                                                         : 0;
    const bool heads_of_128 = chain->head == 128 || chain->wide;
    cuda_start start = {.image = images[form][heads_of_128],
                        .shared_most = ops->device->shared_bytes,
                        .grid = {(unsigned)ops->device->n_multiprocessors, 1, 1},
                        .threads = CHAIN_THREADS,
                        .shared_bytes = (unsigned)CHAIN_SHARED(columns, chain->weight_stages,
                                                               chain->x_stages, chain->wide),
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_linear_chain_%d%s%s", columns, forms[form],
             heads_of_128 ? "_128" : "");
    return cuda_ops_start(ops, &start, (const cuda_argument[]){{chain, sizeof *chain}, {0}}, error);
}
