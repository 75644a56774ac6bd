/* sampling on the GPU: a cluster of blocks per row. */
#include "op/rows_cuda.h"
#include "op/sampling/sampling.h"
#include "op/variants.h"

#include <stdio.h>

enum {
    MOST_BLOCKS = 8, /* of a row, */
    LEAST_BLOCKS = 2,
    RESIDENT = 2, /* and of a multiprocessor */
    THREADS = 512,
};

/* As many blocks for a row as let all rows run at once. */
static unsigned blocks_of(int64_t n_rows, int n_multiprocessors)
{
    unsigned blocks = MOST_BLOCKS;
    while (blocks > LEAST_BLOCKS && n_rows * blocks > RESIDENT * n_multiprocessors)
        blocks /= 2;
    return blocks;
}

/* Whether all fours of a row's logits are aligned float32. */
static bool on_vectors(const tensor *logits)
{
    return logits->type == DTYPE_F32 && logits->shape[1] % 4 == 0 &&
           cuda_rows_on_vectors(cuda_rows_of(logits));
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    int64_t n_rows = call->end - call->begin;
    unsigned blocks = blocks_of(n_rows, ops->device->n_multiprocessors);
    cuda_start start = {.image = "sampling_exact",
                        .grid = {(unsigned)n_rows * blocks, 1, 1},
                        .threads = THREADS,
                        .cluster = blocks};
    (void)kernel, (void)forms;
    snprintf(start.name, sizeof start.name, "%s",
             on_vectors(&call->tensors[SAMPLING_LOGITS]) ? "run_sampling_vectors" : "run_sampling");
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
}

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[SAMPLING_CANDIDATES].rank == 0;
}

const cuda_kernel sampling_cuda[] = {
    {CUDA_ROW(SAMPLING, "cuda"), .accepts = accepts, .launch = launch},
    {0},
};
