/* Prompts' attention by blocks that take tile after tile: kernels by the names that the host looks
 * up. They are an image of their own, because they are run by name alone. */
#include "op/device.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/paged_prefill/paged_prefill_stream.cuh"

typedef __nv_bfloat16 element_BF16;
typedef __half element_F16;

#define STREAM(type, groups, registers, copy_registers)                                            \
    extern "C" __global__ void __launch_bounds__(groups * 128 + 128, 1)                            \
        run_paged_prefill_stream##groups##_##type(const __grid_constant__ paged_attention call,    \
                                                  const __grid_constant__ tensor_map k_map,        \
                                                  const __grid_constant__ tensor_map v_map)        \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_stream<element_##type, 128, groups, registers, copy_registers>(              \
            call, k_map, v_map, shared);                                                           \
    }
PAGED_STREAM_KERNELS(STREAM)
#endif
