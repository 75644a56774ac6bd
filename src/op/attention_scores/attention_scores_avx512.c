/* attention_scores for AVX-512. */
#include "op/attention_scores/attention_scores_simd.inc"
