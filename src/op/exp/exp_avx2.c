/* exp for AVX2. */
#include "op/exp/exp_simd.inc"
