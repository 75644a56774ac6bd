/* rms_norm for AVX-512. */
#include "op/rms_norm/rms_norm_simd.inc"
