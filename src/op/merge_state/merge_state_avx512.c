/* merge_state for AVX-512. */
#include "op/merge_state/merge_state_simd.inc"
