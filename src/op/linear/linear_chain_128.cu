/* linear_chain.cu's kernels for heads of 128 elements. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_HEAD 128
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, _128)
LINEAR_CHAIN(32, _128)
LINEAR_CHAIN(64, _128)
#endif
