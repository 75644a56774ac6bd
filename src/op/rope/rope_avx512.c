/* rope for AVX-512. */
#include "op/rope/rope_simd.inc"
