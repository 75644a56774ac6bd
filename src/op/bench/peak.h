/* Loops that keep one kind of instruction busy, for hardware.c. */
#pragma once

#include "op/variants.h"

#include <stdint.h>

/* Runs n rounds and returns a value that depends on all of them; stores the number of operations.
 */
typedef double peak_loop(int64_t n, double *operations);

#define PEAK_DECLARE(level, features, name) peak_loop name##_##level;
SIMD_LEVELS(PEAK_DECLARE, peak_float)
peak_loop peak_integer_avx2, peak_integer_avx512, peak_integer_avx512_vnni;
peak_loop peak_matrix_amx, peak_integer_neon_dotprod;
