/* merge_state for AVX2. */
#include "op/merge_state/merge_state_simd.inc"
