/* add_residual_rms_norm for AVX2. */
#include "op/add_residual_rms_norm/add_residual_rms_norm_simd.inc"
