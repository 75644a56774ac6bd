/* argmax for AVX2. */
#include "op/argmax/argmax_simd.inc"
