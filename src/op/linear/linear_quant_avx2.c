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
#define v_add(a, b)          _mm256_add_epi32(a, b)
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

static inline __attribute__((always_inline)) float v_greatest(const float *x)
{
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        __m256i bits = _mm256_and_si256(v_load(x + 8 * i), _mm256_set1_epi32(0x7fffffff));
        most = _mm256_max_epi32(most, bits);
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

static inline __attribute__((always_inline)) void v_round(const float *x, float by, int8_t *q,
                                                          int32_t *sums)
{
    for (int i = 0; i < 2; i++) {
        __m256 scale = _mm256_set1_ps(by);
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * i), scale));
        __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * i + 8), scale));
        /* Packing works within 128-bit halves; the permutation puts those in order. */
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
        __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
        _mm_storeu_si128((__m128i *)(q + 16 * i), _mm_packs_epi16(low, high));
        __m128i sum = _mm_madd_epi16(_mm_add_epi16(low, high), _mm_set1_epi16(1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        sums[i] = _mm_cvtsi128_si32(sum);
    }
}

/* 16 values of two vectors to bytes. Packing works within 128-bit halves; the permutation puts
 * those in order. */
static inline __attribute__((always_inline)) void store_bytes(int8_t *q, vint a, vint b)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i *)q, _mm_packs_epi16(low, high));
}

/* The second digit is levels / 255 to the nearest: 255 is odd, so that no level lies in the middle
 * and float32 finds it exactly. */
static inline __attribute__((always_inline)) void
v_round_digits(const float *x, float by, int8_t *low, int8_t *high, int32_t *sums)
{
    for (int i = 0; i < 2; i++) {
        __m256i first[2], second[2], levels[2];
        for (int j = 0; j < 2; j++) {
            __m256 values = _mm256_loadu_ps(x + 16 * i + 8 * j);
            levels[j] = _mm256_cvtps_epi32(_mm256_mul_ps(values, _mm256_set1_ps(by)));
            __m256 share = _mm256_mul_ps(v_convert(levels[j]), _mm256_set1_ps(1.0F / 255));
            second[j] = _mm256_cvtps_epi32(share);
            first[j] = v_sub(levels[j], v_sub(v_left(second[j], 8), second[j]));
        }
        store_bytes(low + 16 * i, first[0], first[1]);
        store_bytes(high + 16 * i, second[0], second[1]);
        __m256i both = v_add(levels[0], levels[1]);
        __m128i sum =
            _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
        sums[i] = _mm_cvtsi128_si32(sum);
    }
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
