/* Chains of products of weights in FP8: kernels by the names that the host looks up; for sm_90a
 * only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_PACKED 1
#define CHAIN_F8     1
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, _f8)
LINEAR_CHAIN(32, _f8)
LINEAR_CHAIN(64, _f8)
#endif
