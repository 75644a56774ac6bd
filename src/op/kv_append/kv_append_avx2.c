/* kv_append for AVX2. */
#include "op/kv_append/kv_append_simd.inc"
