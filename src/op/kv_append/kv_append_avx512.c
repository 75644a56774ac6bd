/* kv_append for AVX-512. */
#include "op/kv_append/kv_append_simd.inc"
