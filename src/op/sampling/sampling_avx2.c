/* sampling for AVX2. */
#include "op/sampling/sampling_simd.inc"
