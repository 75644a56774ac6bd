/* Chains of products of quantised weights: kernels by the names that the host looks up; for sm_90a
 * only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_PACKED 1
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, _packed)
LINEAR_CHAIN(32, _packed)
LINEAR_CHAIN(64, _packed)
#endif
