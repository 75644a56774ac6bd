/* Chains of products: kernels by the names that the host looks up; for sm_90a only. Those for tests
 * are the same, compiled with CHAIN_DELAYS and with CHAIN_SUFFIX after their names: see
 * src/gpu_images.cmake. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_chain.cuh"

#ifndef CHAIN_SUFFIX
#define CHAIN_SUFFIX
#endif

LINEAR_CHAIN(16, CHAIN_SUFFIX)
LINEAR_CHAIN(32, CHAIN_SUFFIX)
LINEAR_CHAIN(64, CHAIN_SUFFIX)
#endif
