/* masked_softmax for AVX-512. */
#include "op/masked_softmax/masked_softmax_simd.inc"
