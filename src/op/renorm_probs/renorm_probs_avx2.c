/* renorm_probs for AVX2. */
#include "op/renorm_probs/renorm_probs_simd.inc"
