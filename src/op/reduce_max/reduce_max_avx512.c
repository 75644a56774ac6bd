/* reduce_max for AVX-512. */
#include "op/reduce_max/reduce_max_simd.inc"
