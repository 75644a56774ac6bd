/* add for AVX2. */
#include "op/add/add_simd.inc"
