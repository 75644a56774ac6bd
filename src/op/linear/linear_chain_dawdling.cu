/* Chains of products for tests: warps sleep at random before their steps, so that races show. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_DAWDLES 1
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, _dawdling)
LINEAR_CHAIN(32, _dawdling)
LINEAR_CHAIN(64, _dawdling)
#endif
