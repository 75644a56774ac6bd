/* add_rms_norm for AVX2. */
#include "op/add_rms_norm/add_rms_norm_simd.inc"
