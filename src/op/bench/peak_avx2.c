/* Peak loops for AVX2 and FMA: enough sums to hide the latency, 15 of the 16 registers at most. */
#include "op/bench/peak.h"

#include <immintrin.h>

enum { SUMS = 12 };

/* Bytes to pairs to words, and the addition: the three instructions that do the work of vpdpbusd.
 * The empty asm keeps the compiler from hoisting the products out of the loop. */
double peak_integer_avx2(int64_t n, double *operations)
{
    __m256i sum[SUMS], a = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            __m256i w = a;
            __asm__ volatile("" : "+x"(w));
            __m256i pairs = _mm256_maddubs_epi16(a, w);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones));
        }
    }
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    *operations = (double)n * SUMS * 32 * 2;
    return _mm256_cvtsi256_si32(sum[0]);
}
