/* linear_chain_ranks.cu's kernels for heads of 128 elements. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_HEAD  128
#define CHAIN_RANKS 1
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, _ranks_128)
LINEAR_CHAIN(32, _ranks_128)
LINEAR_CHAIN(64, _ranks_128)
#endif
