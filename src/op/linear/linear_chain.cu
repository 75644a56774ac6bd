/* Chains of products, by the names that cuda_chain.c knows; for sm_90a only. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, )
LINEAR_CHAIN(32, )
LINEAR_CHAIN(64, )
#endif
