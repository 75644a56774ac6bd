/* argmax for AVX-512. */
#include "op/argmax/argmax_simd.inc"
