/* add_rms_norm for AVX-512. */
#include "op/add_rms_norm/add_rms_norm_simd.inc"
