/* top_k for AVX2. */
#include "op/top_k/top_k_simd.inc"
