/* attention_values for AVX2. */
#include "op/attention_values/attention_values_simd.inc"
