/* rope for AVX2. */
#include "op/rope/rope_simd.inc"
