/* Chains of products, by the names that cuda_chain.c knows; for sm_90a only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_chain.cuh"

/* One fits into a multiprocessor by its shared memory; half the registers are for blocks of the
 * kernel behind, which come early. */
#define LINEAR_CHAIN(columns)                                                                      \
    extern "C" __global__ void __launch_bounds__(CHAIN_THREADS, 1)                                 \
        run_linear_chain_##columns(const __grid_constant__ linear_chain call)                      \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        linear_chain_run<columns>(call, shared);                                                   \
    }
LINEAR_CHAIN(16)
LINEAR_CHAIN(32)
LINEAR_CHAIN(64)
#endif
