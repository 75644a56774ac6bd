/* normalize for AVX2. */
#include "op/normalize/normalize_simd.inc"
