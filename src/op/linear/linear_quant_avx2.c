/* linear_quant for AVX2: 8 lanes, and vpmaddubsw as in linear_quant_avx512.c. */
#include "op/linear/linear_quant_part.h"

#include <immintrin.h>

#define KERNELS      quant_kernels_avx2
#define OFFSET8      0
#define SIGNED_BYTES 0
#define FETCH_FAR    0
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
#define v_shorts(p)          _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p)))
#define v_half_bits(a)                                                                             \
    _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)))
#define v_lookup(levels, w)                                                                        \
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(levels))), w)
#define v_gather(table, a) _mm256_i32gather_epi32((const int *)(table), a, 4)
#define v_mul(a, b)        _mm256_mul_ps(a, b)
#define v_fma(a, b, c)     _mm256_fmadd_ps(a, b, c)

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

/* ---- Tiles: 4 rows of x and a group, two vectors of weight rows ---------------------------- */

/* Sums of a scale's products, of rows of x and vectors of weight rows. */
typedef struct tile_dots {
    vint of[MAX_ROWS][HALVES];
} tile_dots;

/* Words whose sums of products fit in 16 bits: all of a block of 4-bit values, see v_dot4. */
INLINE int words_that_fit(const quant_format *f)
{
    if (f->bits == 4) return 8;
    return f->bits <= 5 ? 4 : f->bits == 6 ? 2 : 1;
}

/* sum + more, of 16 or of 32 bits. The empty statement keeps the order: compilers would add in a
 * tree whose leaves, all products of a block, do not fit into the registers. */
INLINE vint add_16(vint sum, vint more)
{
    sum = _mm256_add_epi16(sum, more);
    __asm__("" : "+x"(sum));
    return sum;
}

INLINE vint add_32(vint sum, vint more)
{
    sum = v_add(sum, more);
    __asm__("" : "+x"(sum));
    return sum;
}

/* Adds the products of a block's words [first, end) and of `rows` rows of x to sums: in 16 bits as
 * far as they fit, then in 32. Weights are unpacked word by word, so that the registers hold sums.
 */
INLINE void add_dots(const quant_format *f, int rows, unpack_word *word_of, const uint8_t *words,
                     int sub, const int8_t *q, int first, int end, tile_dots *sums)
{
    const int n = words_that_fit(f);
    tile_dots narrow;
    UNROLL for (int s = first; s < end; s++)
    {
        vint w[HALVES];
        UNROLL for (int h = 0; h < HALVES; h++)
        {
            w[h] = word_of(words + h * HALF_BYTES, sub, s);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vint x = four_values(q + r * QUANT_BLOCK + 4 * s);
            UNROLL for (int h = 0; h < HALVES; h++)
            {
                vint sum = pairs(w[h], x, f->bits);
                if (s % n > 0) sum = add_16(narrow.of[r][h], sum);
                narrow.of[r][h] = sum;
                if (s % n < n - 1) continue;
                sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
                sums->of[r][h] = add_32(sums->of[r][h], sum);
            }
        }
    }
}

/* The sums of a block of each scale, for `rows` rows of x in tiles of `height`. */
INLINE void block_dots(const quant_format *f, int digits, int rows, int height,
                       unpack_word *word_of, const uint8_t *words, int sub, quant_x x,
                       tile_dots dots[2])
{
    tile_dots high;
    UNROLL for (int g = 0; g < f->groups; g++)
    {
        const int first = 4 * g, end = f->groups == 2 ? first + 4 : 8;
        UNROLL for (int r = 0; r < rows; r++)
        {
            UNROLL for (int h = 0; h < HALVES; h++)
            {
                dots[g].of[r][h] = sum_start(f, x.c, g * height + r);
                high.of[r][h] = v_all(0);
            }
        }
        add_dots(f, rows, word_of, words, sub, x.q, first, end, &dots[g]);
        if (digits == 1) continue;
        add_dots(f, rows, word_of, words, sub, x.q + height * QUANT_BLOCK, first, end, &high);
        UNROLL for (int r = 0; r < rows; r++)
        {
            UNROLL for (int h = 0; h < HALVES; h++)
            {
                dots[g].of[r][h] = join_digits(digits, dots[g].of[r][h], high.of[r][h]);
            }
        }
    }
}

INLINE vint unpacked_word(const uint8_t *bytes, int sub, int s)
{
    (void)sub;
    return word(bytes, s);
}

/* A block of a tile: sums (rows, 2, 16), of which one group's 16 are meant. */
INLINE void tile_block(const quant_format *f, int digits, int rows, const uint8_t *bytes,
                       const float *scales, quant_x x, float *sums)
{
    tile_dots dots[2];
    block_dots(f, digits, rows, QUANT_TILE, unpacked_word, bytes, 0, x, dots);
    UNROLL for (int h = 0; h < HALVES; h++)
    {
        vfloat scale[2], minimum[2];
        UNROLL for (int g = 0; g < f->groups; g++)
        {
            scale[g] = v_load_floats(scales + g * QUANT_ROWS + h * LANES);
            if (f->minimum)
                minimum[g] = v_load_floats(scales + (f->groups + g) * QUANT_ROWS + h * LANES);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vint of_row[2] = {dots[0].of[r][h], dots[f->groups - 1].of[r][h]};
            float *to = sums + r * QUANT_SUMS + h * LANES;
            v_store_floats(to, add_block(f, of_row, scale, minimum, x.d + r, x.c, r, QUANT_TILE,
                                         v_load_floats(to)));
        }
    }
}

/* A block of one row of x and of a group, word by word as in a tile. */
INLINE void vector_block(const quant_format *f, int digits, unpack_word *word_of,
                         unpack_scales *scales_of, const uint8_t *words, const uint16_t *halves,
                         int sub, quant_x x, vfloat sums[HALVES])
{
    tile_dots dots[2];
    block_dots(f, digits, 1, 1, word_of, words, sub, x, dots);
    UNROLL for (int h = 0; h < HALVES; h++)
    {
        const vint of_row[2] = {dots[0].of[0][h], dots[f->groups - 1].of[0][h]};
        quant_scales scales;
        scales_of(words + h * HALF_BYTES, halves + h * LANES, sub, &scales);
        sums[h] = add_block(f, of_row, scales.scale, scales.minimum, x.d, x.c, 0, 1, sums[h]);
    }
}

INLINE void run_vector_avx2(const quant_format *f, int digits, unpack_word *word_of,
                            unpack_scales *scales_of, const uint8_t *group, int64_t n_blocks,
                            quant_x x, float *out)
{
    const uint16_t *halves = (const uint16_t *)group;
    const uint8_t *words = group + quant_halves_bytes(f, n_blocks);
    const uint8_t *ahead = group + bytes_ahead(f);
    vfloat sums[HALVES];
    for (int h = 0; h < HALVES; h++)
        sums[h] = v_convert(v_all(0));
    for (int64_t b = 0; b < n_blocks; b += f->blocks) {
        UNROLL for (int sub = 0; sub < f->blocks; sub++)
        {
            ahead = fetch_share(f, ahead, sums[0]);
            /* Words are loaded again for each block: kept, they do not fit into the registers. */
            __asm__("" : "+r"(words));
            vector_block(f, digits, word_of, scales_of, words, halves, sub,
                         advance(f, digits, 1, b + sub, x), sums);
        }
        halves += f->halves * QUANT_ROWS;
        words += f->words * WORD_BYTES;
    }
    for (int h = 0; h < HALVES; h++)
        v_store_floats(out + h * LANES, sums[h]);
}

INLINE void tile_rows(const quant_format *f, int digits, int rows, const uint8_t *bytes,
                      const float *scales, int count, quant_x x, float *sums)
{
    for (int b = 0; b < count; b++) {
        tile_block(f, digits, rows, bytes, scales, x, sums);
        bytes += 8 * WORD_BYTES;
        scales += quant_scale_floats(f);
        x.q += digits * QUANT_TILE * QUANT_BLOCK;
        x.d += QUANT_TILE;
        x.c = (float *)x.c + QUANT_TILE * f->groups;
    }
}

/* MAX_ROWS rows while there are as many, then one at a time. */
INLINE void run_tile_avx2(const quant_format *f, int offset, int digits, const uint8_t *bytes,
                          const float *scales, int count, quant_x x, int rows, int n_groups,
                          float *sums)
{
    (void)offset; /* the bytes are as they were unpacked */
    for (int g = 0; g < n_groups; g++) {
        const uint8_t *group = bytes + g * QUANT_CHUNK_BYTES;
        const float *of_group = scales + g * QUANT_CHUNK * quant_scale_floats(f);
        for (int r = 0, n; r < rows; r += n) {
            const quant_x part = {x.q + r * QUANT_BLOCK, x.d + r, (float *)x.c + r};
            float *to = sums + r * QUANT_SUMS + g * QUANT_ROWS;
            n = rows - r >= MAX_ROWS ? MAX_ROWS : 1;
            if (n == MAX_ROWS)
                tile_rows(f, digits, MAX_ROWS, group, of_group, count, part, to);
            else
                tile_rows(f, digits, 1, group, of_group, count, part, to);
        }
    }
}

#define RUN_VECTOR run_vector_avx2
#define RUN_TILE   run_tile_avx2
#define FEW_ROWS   64
#include "op/linear/linear_quant_table.inc"
