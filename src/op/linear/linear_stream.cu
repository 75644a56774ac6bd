/* linear for batches: kernels by the names that the host looks up; for sm_90a only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_stream.cuh"

/* Two blocks fit on a multiprocessor, so that the next product's weights come while one ends. */
#define LINEAR_STREAM(columns)                                                                     \
    extern "C" __global__ void __launch_bounds__(LINEAR_STREAM_THREADS, 2)                         \
        run_linear_stream_##columns(const __grid_constant__ linear_stream call)                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_stream_run<columns>(call, shared);                                                  \
    }
LINEAR_STREAM(16)
LINEAR_STREAM(32)
LINEAR_STREAM(64)
#endif
