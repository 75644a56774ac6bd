/* linear_experts' kernels for few tokens: see experts_few.cuh. */
#include "op/linear_experts/experts_few.cuh"

#define EXPERTS_KERNEL(T, pitch, stages, name, up)                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERTS_WARPS *WARP, 2)                           \
        run_experts_##name##_##T(const __grid_constant__ experts_few a)                            \
    {                                                                                              \
        experts_few_block<DTYPE_##T, pitch, stages, up>(a);                                        \
    }
#define EXPERTS_FEW(T, pitch, stages)                                                              \
    EXPERTS_KERNEL(T, pitch, stages, up, true) EXPERTS_KERNEL(T, pitch, stages, down, false)
EXPERTS_FORMATS(EXPERTS_FEW)
