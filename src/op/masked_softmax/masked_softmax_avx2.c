/* masked_softmax for AVX2. */
#include "op/masked_softmax/masked_softmax_simd.inc"
