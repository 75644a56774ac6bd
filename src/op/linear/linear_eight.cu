/* linear's kernels for up to eight rows: see linear_eight.cuh. */
#include "op/linear/linear_eight.cuh"

#define LINEAR_EIGHT(T, pitch, stages, tiles)                                                      \
    extern "C" __global__ void __launch_bounds__(EIGHT_THREADS, 1)                                 \
        run_linear_eight_##T(const __grid_constant__ linear_eight a)                               \
    {                                                                                              \
        linear_eight_block<DTYPE_##T, pitch, stages, tiles>(a);                                    \
    }
LINEAR_EIGHT_FORMATS(LINEAR_EIGHT)
