/* Operators on rows on the GPU: see rows_cuda.h. */
#include "op/rows_cuda.h"

enum { WARP = 32, THREADS = 256 };

device_rows cuda_rows_of(const tensor *view)
{
    return (device_rows){view->data, view->rank > 1 ? view->stride[0] : 0, view->type};
}

device_rows cuda_narrowed_rows(cuda_address at, int64_t n)
{
    return at ? (device_rows){cuda_host_form(at), n * 2, DTYPE_BF16} : (device_rows){0};
}

bool cuda_on_vectors(const void *data, int64_t stride)
{
    return (((uintptr_t)data | (uintptr_t)stride) & 15) == 0;
}

bool cuda_rows_on_vectors(device_rows rows)
{
    return cuda_on_vectors(rows.data, rows.stride);
}

int64_t cuda_warps_of(int64_t threads, int64_t most)
{
    threads = (threads + WARP - 1) / WARP * WARP;
    return threads < most ? threads : most;
}

qp_status cuda_launch_plainly(cuda_ops *ops, const char *name, const op_call *call, int64_t units,
                              qp_error *error)
{
    op_call own = *call;
    int64_t blocks = (call->end - call->begin + units - 1) / units;
    return cuda_ops_start_early(ops, name, blocks, 1, THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units)), error);
}
