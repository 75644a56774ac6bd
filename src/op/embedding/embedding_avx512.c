/* embedding for AVX-512. */
#include "op/embedding/embedding_simd.inc"
