/* head_norm for AVX-512. */
#include "op/head_norm/head_norm_simd.inc"
