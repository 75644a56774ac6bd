/* renorm_probs for AVX-512. */
#include "op/renorm_probs/renorm_probs_simd.inc"
