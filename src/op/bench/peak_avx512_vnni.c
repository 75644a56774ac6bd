/* The peak loop of vpdpbusd. */
#include "op/bench/peak.h"

#include <immintrin.h>

enum { SUMS = 20 };

double peak_integer_avx512_vnni(int64_t n, double *operations)
{
    __m512i sum[SUMS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 20
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
    }
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    *operations = (double)n * SUMS * 64 * 2;
    return _mm512_cvtsi512_si32(sum[0]);
}
