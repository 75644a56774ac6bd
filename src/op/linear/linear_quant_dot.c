/* linear_quant in vectors of four weight rows: NEON, with dotprod and i8mm where the level has
 * them, SSE2, and vectors of the compiler's own.
 *
 * sdot multiplies a word of four values of every lane with a word of x, which it takes from any
 * lane, so that x needs no broadcast. smmla multiplies eight values of two weight rows with eight
 * of two rows of x: an unpacked chunk holds the words in pairs for it. Without either, NEON and
 * SSE2 multiply bytes to 16 bits; SSE2 by even and odd bytes, because it adds pairs of 16 bits
 * only.
 */
#include "op/linear/linear_quant_part.h"
#include "op/simd.h"

#define KERNELS      SIMD_PASTE(quant_kernels, SIMD_LEVEL)
#define OFFSET8      0
#define SIGNED_BYTES 0
#define FETCH_FAR    0
#define MAX_ROWS     (SIMD_REGISTERS == 32 ? 4 : 2)

typedef vi vint;
typedef vf vfloat;
typedef int8_t v_bytes __attribute__((vector_size(16)));
typedef int16_t v_words __attribute__((vector_size(16)));

#define v_load_floats(p)     vf_loadu(p)
#define v_store_floats(p, v) vf_storeu(p, v)
#define v_and(a, b)          ((a) & (b))
#define v_or(a, b)           ((a) | (b))
#define v_xor(a, b)          ((a) ^ (b))
#define v_add8(a, b)         ((vint)((v_bytes)(a) + (v_bytes)(b)))
#define v_sub8(a, b)         ((vint)((v_bytes)(a) - (v_bytes)(b)))
#define v_add(a, b)          ((vint)((vw)(a) + (vw)(b)))
#define v_sub(a, b)          ((vint)((vw)(a) - (vw)(b)))
#define v_left(a, n)         ((vint)((vw)(a) << (n)))
#define v_right(a, n)        ((vint)((vw)(a) >> (n)))
#define v_right_signed(a, n) ((a) >> (n))
#define v_all(n)             v_int(&(int32_t){(int32_t)(n)})
#define v_float(p)           vf_set1(*(p))
#define v_convert(a)         __builtin_convertvector(a, vfloat)
#define v_mul(a, b)          vf_mul(a, b)
#define v_fma(a, b, c)       vf_fma(a, b, c)

#define INLINE_V static inline __attribute__((always_inline))

INLINE_V vint v_load(const void *p)
{
    vint v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE_V void v_store(void *p, vint v)
{
    memcpy(p, &v, sizeof v);
}

INLINE_V vint v_int(const int32_t *p)
{
    return (vint){*p, *p, *p, *p};
}

INLINE_V vfloat v_halves(const uint16_t *p)
{
    vh half;
    memcpy(&half, p, sizeof half);
    return vf_from_f16(half);
}

INLINE_V vint v_shorts(const uint16_t *p)
{
    return (vint){p[0], p[1], p[2], p[3]};
}

INLINE_V vfloat v_half_bits(vint a)
{
    return v_halves(
        (const uint16_t[]){(uint16_t)a[0], (uint16_t)a[1], (uint16_t)a[2], (uint16_t)a[3]});
}

#if defined(__aarch64__)
#define TABLE_V INLINE_V

INLINE_V vint v_lookup(const uint8_t *levels, vint w)
{
    return (vint)vqtbl1q_u8(vld1q_u8(levels), (uint8x16_t)w);
}
#else
/* Tables are read element by element, in code that is too long to stand in every kernel. */
#define TABLE_V static __attribute__((noinline))

TABLE_V vint v_lookup(const uint8_t *levels, vint w)
{
    v_bytes bytes = (v_bytes)w;
    for (int i = 0; i < 16; i++)
        bytes[i] = (int8_t)levels[bytes[i]];
    return (vint)bytes;
}
#endif

TABLE_V vint v_gather(const uint32_t *table, vint a)
{
    return (vint){(int32_t)table[a[0]], (int32_t)table[a[1]], (int32_t)table[a[2]],
                  (int32_t)table[a[3]]};
}

INLINE_V vint v_nearest(vfloat v)
{
#if defined(__aarch64__)
    return vcvtnq_s32_f32(v);
#elif defined(__SSE2__)
    return (vint)_mm_cvtps_epi32(v);
#else
    return __builtin_convertvector(vf_round(v), vint);
#endif
}

INLINE_V float v_greatest(const float *x)
{
    vint most = {0};
    for (int i = 0; i < 32; i += LANES) {
        const vint bits = v_load(x + i) & 0x7fffffff, larger = bits > most;
        most = (bits & larger) | (most & ~larger);
    }
    int32_t greatest = most[0];
    for (int i = 1; i < LANES; i++)
        greatest = most[i] > greatest ? most[i] : greatest;
    return float_from_bits((uint32_t)greatest);
}

typedef int8_t v_four __attribute__((vector_size(4)));

INLINE_V void store_bytes(int8_t *q, vint v)
{
    const v_four four = __builtin_convertvector(v, v_four);
    memcpy(q, &four, sizeof four);
}

INLINE_V void v_round(const float *x, float by, int8_t *q, int32_t *sums)
{
    for (int i = 0; i < 2; i++) {
        vint sum = {0};
        for (int j = 16 * i; j < 16 * (i + 1); j += LANES) {
            const vint levels = v_nearest(vf_mul(vf_loadu(x + j), vf_set1(by)));
            store_bytes(q + j, levels);
            sum += levels;
        }
        sums[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

/* The second digit is levels / 255 to the nearest: 255 is odd, so that no level lies in the middle
 * and float32 finds it exactly. */
INLINE_V void v_round_digits(const float *x, float by, int8_t *low, int8_t *high, int32_t *sums)
{
    for (int i = 0; i < 2; i++) {
        vint sum = {0};
        for (int j = 16 * i; j < 16 * (i + 1); j += LANES) {
            const vint levels = v_nearest(vf_mul(vf_loadu(x + j), vf_set1(by)));
            const vint second = v_nearest(vf_mul(v_convert(levels), vf_set1(1.0F / 255)));
            store_bytes(low + j, levels - second * 255);
            store_bytes(high + j, second);
            sum += levels;
        }
        sums[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

#if defined(__ARM_FEATURE_DOTPROD)

INLINE_V vint v_dot4(vint sum, const vint *w, const int8_t *x, int bits)
{
    (void)bits;
    const int8x16_t values = vld1q_s8(x);
    sum = vdotq_laneq_s32(sum, (int8x16_t)w[0], values, 0);
    sum = vdotq_laneq_s32(sum, (int8x16_t)w[1], values, 1);
    sum = vdotq_laneq_s32(sum, (int8x16_t)w[2], values, 2);
    return vdotq_laneq_s32(sum, (int8x16_t)w[3], values, 3);
}

#elif defined(__aarch64__)

INLINE_V vint v_dot4(vint sum, const vint *w, const int8_t *x, int bits)
{
    const int fit = bits <= 5 ? 4 : bits == 6 ? 2 : 1; /* sums that fit in 16 bits with a pair's */
    for (int s = 0; s < 4; s += fit) {
        int16x8_t low = {0}, high = {0};
        for (int i = s; i < s + fit; i++) {
            const int8x16_t four = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)x + i));
            const int8x16_t values = (int8x16_t)w[i];
            low = vmlal_s8(low, vget_low_s8(values), vget_low_s8(four));
            high = vmlal_high_s8(high, values, four);
        }
        sum = vpadalq_s16(sum, vpaddq_s16(low, high));
    }
    return sum;
}

#elif defined(__SSE2__)

INLINE_V vint v_dot4(vint sum, const vint *w, const int8_t *x, int bits)
{
    const v_words both = (v_words)v_load(x), even = both << 8 >> 8, odd = both >> 8;
#define ADD_WORD(s)                                                                                \
    {                                                                                              \
        const v_words first = bits < 8 ? (v_words)w[s] & 0xff : (v_words)w[s] << 8 >> 8;           \
        const __m128i second =                                                                     \
            bits < 8 ? _mm_srli_epi16((__m128i)w[s], 8) : (__m128i)((v_words)w[s] >> 8);           \
        sum += (vint)_mm_madd_epi16((__m128i)first, _mm_shuffle_epi32((__m128i)even, 0x55 * (s))); \
        sum += (vint)_mm_madd_epi16(second, _mm_shuffle_epi32((__m128i)odd, 0x55 * (s)));          \
    }
    ADD_WORD(0)
    ADD_WORD(1)
    ADD_WORD(2)
    ADD_WORD(3)
#undef ADD_WORD
    return sum;
}

#else

/* 16 bits at a time: the even bytes and the odd ones, whose products are added to pairs. */
INLINE_V vint v_dot4(vint sum, const vint *w, const int8_t *x, int bits)
{
    const int fit = bits <= 5 ? 4 : bits == 6 ? 2 : 1; /* words whose sums fit in 16 bits */
    const v_words both = (v_words)v_load(x);
    const vint even = (vint)(both << 8 >> 8), odd = (vint)(both >> 8);
    v_words pairs = {0};
#define SPREAD(v, i) ((v_words)__builtin_shufflevector(v, v, i, i, i, i))
#define ADD_WORD(i)                                                                                \
    {                                                                                              \
        const v_words word = (v_words)w[i], first = bits < 8 ? word & 0xff : word << 8 >> 8;       \
        pairs += first * SPREAD(even, i) + (word >> 8) * SPREAD(odd, i);                           \
        if (((i) + 1) % fit == 0) {                                                                \
            sum += ((vint)pairs << 16 >> 16) + ((vint)pairs >> 16);                                \
            pairs = (v_words){0};                                                                  \
        }                                                                                          \
    }
    ADD_WORD(0)
    ADD_WORD(1)
    ADD_WORD(2)
    ADD_WORD(3)
#undef ADD_WORD
#undef SPREAD
    return sum;
}

#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define STORE_WORDS store_pairs
/* Word s and s + 1 of four rows: of rows 0 and 1, then of rows 2 and 3. */
INLINE_V void store_pairs(const quant_format *f, const vint w[8], uint8_t *bytes)
{
    enum { WORD = 4 * QUANT_ROWS };
    (void)f;
    for (int s = 0; s < 8; s += 2) {
        v_store(bytes + s * WORD, vzip1q_s32(w[s], w[s + 1]));
        v_store(bytes + (s + 1) * WORD, vzip2q_s32(w[s], w[s + 1]));
    }
}
#endif

#include "op/linear/linear_quant_kernel.inc"

#if defined(__ARM_FEATURE_MATMUL_INT8)

/* Vectors of weight rows and rows of x at a time, so that their sums stay in registers. */
enum { X_ROWS = 4, X_PAIRS = X_ROWS / 2, PART = 2, W_PAIRS = PART * LANES / 2 };

/* Adds the products of 16 values, four words from s on, of the part's rows and of four rows of x.
 */
INLINE void add_sixteen(const uint8_t *bytes, const int8_t *q, int s, vint sums[X_PAIRS][W_PAIRS])
{
    int64x2_t x[X_PAIRS][2];
    UNROLL for (int p = 0; p < X_PAIRS; p++)
    {
        const int8_t *row = q + 2 * p * QUANT_BLOCK + 4 * s;
        const int64x2_t a = (int64x2_t)v_load(row), b = (int64x2_t)v_load(row + QUANT_BLOCK);
        x[p][0] = vzip1q_s64(a, b);
        x[p][1] = vzip2q_s64(a, b);
    }
    UNROLL16 for (int i = 0; i < 2 * W_PAIRS; i++)
    {
        const int pair = i % W_PAIRS, at = s + i / W_PAIRS * 2 + pair % 2;
        const int8x16_t w = (int8x16_t)v_load(bytes + at * WORD_BYTES + pair / 2 * HALF_BYTES);
        UNROLL for (int p = 0; p < X_PAIRS; p++)
        {
            sums[p][pair] = vmmlaq_s32(sums[p][pair], w, (int8x16_t)x[p][i / W_PAIRS]);
        }
    }
}

/* Of scale group g of a block: dots (4 rows of x, vectors of the part). */
INLINE void group_dots(const quant_format *f, int digits, const uint8_t *bytes, quant_x x, int g,
                       vint dots[X_ROWS][PART])
{
    const int first = 4 * g, end = f->groups == 2 ? first + 4 : 8;
    vint sums[X_PAIRS][W_PAIRS] = {{{0}}};
    UNROLL for (int i = digits - 1; i >= 0; i--)
    {
        for (int p = 0; p < X_PAIRS && i == 0; p++) {
            const int32_t *c = (const int32_t *)x.c + g * QUANT_TILE + 2 * p;
            const vint start = is_lifted(f) ? (vint){c[0], c[1], c[0], c[1]} : v_all(0);
            for (int k = 0; k < W_PAIRS; k++)
                sums[p][k] = join_digits(digits, start, sums[p][k]);
        }
        UNROLL for (int s = first; s < end; s += 4)
        {
            add_sixteen(bytes, x.q + i * QUANT_TILE * QUANT_BLOCK, s, sums);
        }
    }
    for (int r = 0; r < X_ROWS; r += 2)
        for (int h = 0; h < PART; h++) {
            const vint *of = &sums[r / 2][2 * h];
            dots[r][h] = vuzp1q_s32(of[0], of[1]);
            dots[r + 1][h] = vuzp2q_s32(of[0], of[1]);
        }
}

/* A block of four rows of x and of a part. */
INLINE void add_four_rows(const quant_format *f, int digits, const uint8_t *bytes,
                          const float *scales, quant_x x, vfloat out[X_ROWS][PART])
{
    vint dots[2][X_ROWS][PART];
    for (int g = 0; g < f->groups; g++)
        group_dots(f, digits, bytes, x, g, dots[g]);
    UNROLL for (int h = 0; h < PART; h++)
    {
        vfloat scale[2], minimum[2];
        for (int g = 0; g < f->groups; g++) {
            scale[g] = v_load_floats(scales + g * QUANT_ROWS + h * LANES);
            if (f->minimum)
                minimum[g] = v_load_floats(scales + (f->groups + g) * QUANT_ROWS + h * LANES);
        }
        UNROLL for (int r = 0; r < X_ROWS; r++)
        {
            const vint of_row[2] = {dots[0][r][h], dots[f->groups - 1][r][h]};
            out[r][h] =
                add_block(f, of_row, scale, minimum, x.d + r, x.c, r, QUANT_TILE, out[r][h]);
        }
    }
}

/* Rows that are not there lie in the tile's memory all the same, and nothing is stored of them. */
INLINE void run_part(const quant_format *f, int digits, const uint8_t *bytes, const float *scales,
                     int count, quant_x x, int rows, float *sums)
{
    vfloat out[X_ROWS][PART];
    UNROLL for (int i = 0; i < X_ROWS * PART; i++) out[i / PART][i % PART] =
        i / PART < rows ? v_load_floats(sums + i / PART * QUANT_SUMS + i % PART * LANES)
                        : v_convert(v_all(0));
    for (int b = 0; b < count; b++) {
        add_four_rows(f, digits, bytes, scales, x, out);
        bytes += 8 * WORD_BYTES;
        scales += quant_scale_floats(f);
        x = advance(f, digits, QUANT_TILE, 1, x);
    }
    UNROLL for (int i = 0; i < X_ROWS * PART; i++) if (i / PART < rows)
        v_store_floats(sums + i / PART * QUANT_SUMS + i % PART * LANES, out[i / PART][i % PART]);
}

INLINE void run_tile_i8mm(const quant_format *f, int offset, int digits, const uint8_t *bytes,
                          const float *scales, int count, quant_x x, int rows, int n_groups,
                          float *sums)
{
    (void)offset; /* the bytes are as they were unpacked */
    for (int g = 0; g < n_groups; g++)
        for (int r = 0; r < rows; r += X_ROWS)
            for (int h = 0; h < HALVES; h += PART) {
                const quant_x part = {x.q + r * QUANT_BLOCK, x.d + r, (float *)x.c + r};
                run_part(f, digits, bytes + g * QUANT_CHUNK_BYTES + h * HALF_BYTES,
                         scales + g * QUANT_CHUNK * quant_scale_floats(f) + h * LANES, count, part,
                         rows - r, sums + r * QUANT_SUMS + g * QUANT_ROWS + h * LANES);
            }
}

#define RUN_TILE run_tile_i8mm
#define FEW_ROWS (X_ROWS - 1)
#endif

#include "op/linear/linear_quant_table.inc"
