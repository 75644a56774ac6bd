/* linear_quant for AVX2: 8 lanes, and vpmaddubsw as in linear_quant_avx512.c. */
#include "op/linear/linear_quant_part.h"

#include <immintrin.h>

#define KERNELS      quant_kernels_avx2
#define OFFSET8      0
#define SIGNED_BYTES 0
#define LANES        8
#define MAX_ROWS     4

typedef __m256i vint;
typedef __m256 vfloat;

#define v_load(p)            _mm256_loadu_si256((const __m256i *)(p))
#define v_store(p, v)        _mm256_storeu_si256((__m256i *)(p), v)
#define v_load_floats(p)     _mm256_loadu_ps(p)
#define v_store_floats(p, v) _mm256_storeu_ps(p, v)
#define v_and(a, b)          _mm256_and_si256(a, b)
#define v_or(a, b)           _mm256_or_si256(a, b)
#define v_xor(a, b)          _mm256_xor_si256(a, b)
#define v_add8(a, b)         _mm256_add_epi8(a, b)
#define v_sub8(a, b)         _mm256_sub_epi8(a, b)
#define v_sub(a, b)          _mm256_sub_epi32(a, b)
#define v_left(a, n)         _mm256_slli_epi32(a, n)
#define v_right(a, n)        _mm256_srli_epi32(a, n)
#define v_right_signed(a, n) _mm256_srai_epi32(a, n)
#define v_all(n)             _mm256_set1_epi32((int32_t)(n))
#define v_int(p)             _mm256_set1_epi32(*(p))
#define v_float(p)           _mm256_set1_ps(*(p))
#define v_convert(a)         _mm256_cvtepi32_ps(a)
#define v_halves(p)          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define v_mul(a, b)          _mm256_mul_ps(a, b)
#define v_fma(a, b, c)       _mm256_fmadd_ps(a, b, c)

static inline __attribute__((always_inline)) vint four_values(const int8_t *x)
{
    int32_t four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

static inline __attribute__((always_inline)) vint pairs(vint w, vint x, int bits)
{
    if (bits < 8) return _mm256_maddubs_epi16(w, x);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}

static inline __attribute__((always_inline)) vint v_dot4(vint sum, const vint *w, const int8_t *x,
                                                         int bits)
{
    int fit = bits <= 5 ? 4 : bits == 6 ? 2 : 1; /* sums of pairs that fit in 16 bits */
    for (int s = 0; s < 4; s += fit) {
        vint narrow = pairs(w[s], four_values(x + 4 * s), bits);
        for (int i = 1; i < fit; i++)
            narrow = _mm256_add_epi16(narrow, pairs(w[s + i], four_values(x + 4 * (s + i)), bits));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
    }
    return sum;
}

#include "op/linear/linear_quant_kernel.inc"
#include "op/linear/linear_quant_table.inc"
