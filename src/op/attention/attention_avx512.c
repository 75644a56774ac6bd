/* Attention tiles for AVX-512. */
#include "op/attention/attention_simd.inc"
