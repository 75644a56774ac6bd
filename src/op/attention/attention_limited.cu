/* Attention with a window, a cap of the scores or masks: kernels by the names that the host looks
 * up. They are those of cuda_ops.cu and attention_paged.cu, with a second parameter. They are an
 * image of their own, which only models and calls with limits load. */
#include "op/paged_decode/paged_decode.cuh"
#include "op/paged_decode/paged_decode_batch.cuh"
#include "op/paged_prefill/paged_prefill.cuh"
#include "op/paged_prefill/paged_prefill_mma.cuh"
#include "op/ragged_prefill/ragged_prefill.cuh"

typedef __nv_bfloat16 element_BF16;
typedef __half element_F16;
typedef element_f8 element_F8;

/* By units, one head of a token each. */
#define HEADS(name, wait)                                                                          \
    extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS *WARP)                            \
        run_##name##_limited(const __grid_constant__ op_call call, int64_t units,                  \
                             const __grid_constant__ attention_limits limits)                      \
    {                                                                                              \
        wait();                                                                                    \
        int64_t begin = call.begin + blockIdx.x * units;                                           \
        name##_block<limited_head>(call, begin, min(begin + units, call.end), limits);             \
    }
HEADS(paged_decode, device_take_turn)
HEADS(ragged_prefill, device_take_turn)
HEADS(paged_prefill, device_let_next_begin) /* paged_prefill_block() itself waits */

#define PREFILL_MMA(type, head_dim)                                                                \
    extern "C" __global__ void __launch_bounds__(PREFILL_MMA_WARPS * 32, 2)                        \
        run_paged_prefill_mma_##type##_##head_dim##_limited(                                       \
            const __grid_constant__ paged_attention call,                                          \
            const __grid_constant__ attention_limits limits)                                       \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_mma<element_##type, head_dim, PAGED_STEP>(call, limits, shared);             \
    }
PAGED_TYPES(PREFILL_MMA)

#define DECODE_BATCH(type, head_dim)                                                               \
    extern "C" __global__ void __launch_bounds__(PAGED_DECODE_WARPS * 32,                          \
                                                 decode_form<element_##type, head_dim>::BLOCKS)    \
        run_paged_decode_batch_##type##_##head_dim##_limited(                                      \
            const __grid_constant__ paged_attention call,                                          \
            const __grid_constant__ attention_limits limits)                                       \
    {                                                                                              \
        paged_decode_batch<element_##type, head_dim, PAGED_DECODE_WARPS>(call, limits);            \
    }
PAGED_DECODE_TYPES(DECODE_BATCH)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/paged_prefill/paged_prefill_f8.cuh"

#define PREFILL_WGMMA(type, head_dim, groups)                                                      \
    extern "C" __global__ void __launch_bounds__(groups * 128 + 128, 1)                            \
        run_paged_prefill_wgmma##groups##_##type##_##head_dim##_limited(                           \
            PREFILL_PARAMETERS, const __grid_constant__ attention_limits limits)                   \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_wgmma<element_##type, prefill_form<head_dim, groups>>(                       \
            call, k_map, v_map, q_map, out_map, carried, limits, shared);                          \
    }
PAGED_PREFILL_LIMITED_KERNELS(PREFILL_WGMMA)

#define PREFILL_F8(head_dim)                                                                       \
    extern "C" __global__ void __launch_bounds__(PAGED_PREFILL_F8_THREADS, 1)                      \
        run_paged_prefill_f8_##head_dim##_limited(PREFILL_PARAMETERS,                              \
                                                  const __grid_constant__ attention_limits limits) \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_f8<prefill_f8_form<head_dim>>(call, k_map, v_map, limits, shared);           \
    }
PAGED_PREFILL_F8_KERNELS(PREFILL_F8)
#endif
