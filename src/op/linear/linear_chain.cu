/* Chains of products: kernels by the names that the host looks up; for sm_90a only. They are
 * compiled for each form of src/gpu_images.cmake, with CHAIN_SUFFIX after their names. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "op/linear/linear_chain.cuh"

LINEAR_CHAIN(16, CHAIN_SUFFIX)
LINEAR_CHAIN(32, CHAIN_SUFFIX)
LINEAR_CHAIN(64, CHAIN_SUFFIX)
#endif
