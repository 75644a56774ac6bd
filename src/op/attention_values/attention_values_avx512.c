/* attention_values for AVX-512. */
#include "op/attention_values/attention_values_simd.inc"
