/* add for AVX-512. */
#include "op/add/add_simd.inc"
