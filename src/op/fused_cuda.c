/* Launches of the fused operators' kernels: see fused_cuda.h. */
#include "op/fused_cuda.h"

#include <stdio.h>

enum { WARPS = CUDA_FUSED_THREADS / 32 };

/* Blocks that process groups of units one after another: as many as run at once, or fewer if that
 * takes no longer. */
static int64_t blocks_in_turn(const cuda_ops *ops, int64_t groups, int64_t at_once)
{
    int64_t most = (int64_t)ops->device->n_multiprocessors * (at_once == 1 ? 3 : 2);
    int64_t turns = (groups + most - 1) / most;
    return turns ? (groups + turns - 1) / turns : 0;
}

qp_status cuda_fused_launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            bool alone, qp_error *error)
{
    op_call own = *call;
    int64_t rows = call->tensors[op_n_tensors(op_get(kernel->op)) - 1].shape[0];
    int64_t units = kernel->units ? kernel->units : WARPS;
    int64_t blocks = (call->end - call->begin + units - 1) / units;
    int64_t at_once = rows > 1 && !alone ? CUDA_FUSED_MANY : 1;
    if (!kernel->units) blocks = blocks_in_turn(ops, blocks, at_once);
    cuda_start start = {.image = kernel->image,
                        .grid = {(unsigned)blocks, (unsigned)((rows + at_once - 1) / at_once), 1},
                        .threads = CUDA_FUSED_THREADS};
    snprintf(start.name, sizeof start.name, "%s_%d", kernel->function, (int)at_once);
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)),
                          error);
}

qp_status cuda_fused_rows(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          const cuda_forms *forms, qp_error *error)
{
    (void)forms;
    return cuda_fused_launch(ops, kernel, call, false, error);
}
