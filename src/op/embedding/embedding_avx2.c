/* embedding for AVX2. */
#include "op/embedding/embedding_simd.inc"
