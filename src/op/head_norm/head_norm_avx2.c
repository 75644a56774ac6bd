/* head_norm for AVX2. */
#include "op/head_norm/head_norm_simd.inc"
