/* Attention over a paged cache on tensor cores: kernels by the names that the host looks up. Those
 * with wgmma exist for sm_90a only; the code for later GPUs has mma.sync. */
#include "op/paged_decode/paged_decode_batch.cuh"
#include "op/paged_prefill/paged_prefill_mma.cuh"

typedef __nv_bfloat16 element_BF16;
typedef __half element_F16;
typedef element_f8 element_F8;

/* The number of blocks per multiprocessor that shared memory and registers have room for: without
 * it the compiler uses more registers than fit. */
#define PREFILL_MMA(type, head_dim)                                                                \
    extern "C" __global__ void __launch_bounds__(PREFILL_MMA_WARPS * 32, 2)                        \
        run_paged_prefill_mma_##type##_##head_dim(const __grid_constant__ paged_attention call)    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_mma<element_##type, head_dim, PAGED_STEP>(call, no_limits(), shared);        \
    }
PAGED_TYPES(PREFILL_MMA)

#define DECODE_BATCH(type, head_dim)                                                               \
    extern "C" __global__ void __launch_bounds__(PAGED_DECODE_WARPS * 32,                          \
                                                 decode_form<element_##type, head_dim>::BLOCKS)    \
        run_paged_decode_batch_##type##_##head_dim(const __grid_constant__ paged_attention call)   \
    {                                                                                              \
        paged_decode_batch<element_##type, head_dim, PAGED_DECODE_WARPS>(call, no_limits());       \
    }
PAGED_DECODE_TYPES(DECODE_BATCH)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/paged_prefill/paged_prefill_f8.cuh"

#define PREFILL_WGMMA(type, head_dim, groups)                                                      \
    extern "C" __global__ void __launch_bounds__(groups * 128 + 128, 1)                            \
        run_paged_prefill_wgmma##groups##_##type##_##head_dim(PREFILL_PARAMETERS)                  \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_wgmma<element_##type, prefill_form<head_dim, groups>>(                       \
            call, k_map, v_map, q_map, out_map, carried, no_limits(), shared);                     \
    }
PAGED_PREFILL_KERNELS(PREFILL_WGMMA)

#define PREFILL_F8(head_dim)                                                                       \
    extern "C" __global__ void __launch_bounds__(PAGED_PREFILL_F8_THREADS, 1)                      \
        run_paged_prefill_f8_##head_dim(PREFILL_PARAMETERS)                                        \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        paged_prefill_f8<prefill_f8_form<head_dim>>(call, k_map, v_map, no_limits(), shared);      \
    }
PAGED_PREFILL_F8_KERNELS(PREFILL_F8)
#endif
