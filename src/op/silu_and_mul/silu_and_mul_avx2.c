/* silu_and_mul for AVX2. */
#include "op/silu_and_mul/silu_and_mul_simd.inc"
