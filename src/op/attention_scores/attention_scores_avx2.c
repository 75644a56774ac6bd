/* attention_scores for AVX2. */
#include "op/attention_scores/attention_scores_simd.inc"
