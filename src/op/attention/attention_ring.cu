/* paged_decode of few sequences: kernels by the names that the host looks up, plain and with
 * limits. An image of its own, because passes of a model do not load it. */
#include "op/paged_decode/paged_decode_ring.cuh"

typedef __nv_bfloat16 element_BF16;
typedef __half element_F16;
typedef element_f8 element_F8;

#define DECODE_RING(type, head_dim)                                                                \
    extern "C" __global__ void __launch_bounds__(PAGED_RING_THREADS, PAGED_RING_BLOCKS)            \
        run_paged_decode_ring_##type##_##head_dim(const __grid_constant__ paged_attention call)    \
    {                                                                                              \
        extern __shared__ __align__(128) char stages[];                                            \
        paged_decode_ring<element_##type, head_dim>(call, no_limits(), stages);                    \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(PAGED_RING_THREADS, PAGED_RING_BLOCKS)            \
        run_paged_decode_ring_##type##_##head_dim##_limited(                                       \
            const __grid_constant__ paged_attention call,                                          \
            const __grid_constant__ attention_limits limits)                                       \
    {                                                                                              \
        extern __shared__ __align__(128) char stages[];                                            \
        paged_decode_ring<element_##type, head_dim>(call, limits, stages);                         \
    }
PAGED_DECODE_TYPES(DECODE_RING)
