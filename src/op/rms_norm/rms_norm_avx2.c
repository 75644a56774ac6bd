/* rms_norm for AVX2. */
#include "op/rms_norm/rms_norm_simd.inc"
