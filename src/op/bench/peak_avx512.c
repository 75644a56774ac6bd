/* Peak loops for AVX-512: enough sums to hide the latency. */
#include "op/bench/peak.h"

#include <immintrin.h>

enum { SUMS = 20 };

/* As peak_integer_avx2. */
double peak_integer_avx512(int64_t n, double *operations)
{
    __m512i sum[SUMS], a = _mm512_set1_epi8(3), ones = _mm512_set1_epi16(1);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 20
        for (int i = 0; i < SUMS; i++) {
            __m512i w = a;
            __asm__ volatile("" : "+v"(w));
            __m512i pairs = _mm512_maddubs_epi16(a, w);
            sum[i] = _mm512_add_epi32(sum[i], _mm512_madd_epi16(pairs, ones));
        }
    }
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    *operations = (double)n * SUMS * 64 * 2;
    return _mm512_cvtsi512_si32(sum[0]);
}
