/* linear_chain_ranks_128.cu's kernels for rows of up to 8,192 features. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CHAIN_HEAD  128
#define CHAIN_RANKS 1
#define CHAIN_WIDE  1
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, _wide_128)
LINEAR_CHAIN(32, _wide_128)
LINEAR_CHAIN(64, _wide_128)
#endif
