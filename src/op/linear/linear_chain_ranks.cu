/* linear_chain.cu's kernels for several GPUs, whose rows are summed over ranks inside the chain;
 * and those for tests. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_RANKS 1
#include "op/linear/linear_chain.cuh"

#ifndef CHAIN_SUFFIX
#define CHAIN_SUFFIX _ranks
#endif

LINEAR_CHAIN(16, CHAIN_SUFFIX)
LINEAR_CHAIN(32, CHAIN_SUFFIX)
LINEAR_CHAIN(64, CHAIN_SUFFIX)
#endif
