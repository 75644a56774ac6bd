/* sampling for AVX-512. */
#include "op/sampling/sampling_simd.inc"
