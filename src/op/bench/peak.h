/* Loops that keep one kind of instruction busy, for hardware.c. */
#ifndef QUIPU_OP_BENCH_PEAK_H
#define QUIPU_OP_BENCH_PEAK_H

#include <stdint.h>

/* Runs n rounds and returns a value that depends on all of them; stores the number of operations.
 */
typedef double peak_loop(int64_t n, double *operations);

peak_loop peak_float_sse2, peak_float_avx2, peak_float_avx512;
peak_loop peak_integer_avx2, peak_integer_avx512, peak_integer_avx512_vnni;
peak_loop peak_matrix_amx;

#endif
