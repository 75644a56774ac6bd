/* silu_and_mul for AVX-512. */
#include "op/silu_and_mul/silu_and_mul_simd.inc"
