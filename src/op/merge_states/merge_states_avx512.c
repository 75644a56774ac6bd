/* Merging attention states for AVX-512. */
#include "op/merge_states/merge_states_simd.inc"
