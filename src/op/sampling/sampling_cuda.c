/* sampling on the GPU: a cluster of blocks per row. */
#include "op/cuda_ops.h"
#include "op/sampling/sampling.h"
#include "op/variants.h"

enum { CLUSTER = 8 /* blocks per row */, THREADS = 512 };

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    op_call own = *call;
    const cuda_start start = {.image = "sampling_exact",
                              .name = "run_sampling",
                              .grid = {(unsigned)(call->end - call->begin) * CLUSTER, 1, 1},
                              .threads = THREADS};
    (void)kernel, (void)forms;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
}

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[SAMPLING_CANDIDATES].rank == 0;
}

const cuda_kernel sampling_cuda[] = {
    {.op = OP_SAMPLING, .name = "cuda", .accepts = accepts, .launch = launch},
    {0},
};
