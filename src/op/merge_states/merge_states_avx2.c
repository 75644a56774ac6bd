/* Merging attention states for AVX2. */
#include "op/merge_states/merge_states_simd.inc"
