/* exp for AVX-512. */
#include "op/exp/exp_simd.inc"
