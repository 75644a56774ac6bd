/* Attention tiles for AVX2. */
#include "op/attention/attention_simd.inc"
