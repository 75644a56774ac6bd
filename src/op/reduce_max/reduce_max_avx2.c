/* reduce_max for AVX2. */
#include "op/reduce_max/reduce_max_simd.inc"
