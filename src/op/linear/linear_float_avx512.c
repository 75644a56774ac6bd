/* linear with float weights, AVX-512: see linear_float.h.
 *
 * A tile is up to 12 rows by a panel of two vectors: 24 sums, two weights and a broadcast
 * activation fill 27 of the 32 registers, and 14 loads serve 24 fused multiply-adds. BF16 is
 * widened to float32 by a shift and a mask; vdpbf16ps runs at half the rate of float32 on the
 * processors that have it and rounds differently. The kernels for each number of rows are one
 * inlined function with the number a constant.
 */
#include "op/linear/linear_float.h"

#include "base/buffer.h"
#include "op/linear/linear.h"
#include "tensor/codec.h"

#include <immintrin.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    MAX_ROWS = 12,
    AHEAD = 512, /* prefetch distance of a streamed panel, in bytes */
};

#define INLINE static inline __attribute__((always_inline))

/* Two vectors of features of one input, or of each of a pair of inputs. */
typedef struct line {
    __m512 low, high;
} line;

/* Sixteen bytes of E4M3 as F16, which is their value over 256. */
INLINE __m512 load_bytes(const char *from)
{
    __m256i halves =
        _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)from)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(halves, _mm256_set1_epi16((int16_t)0xbfff)));
}

INLINE line load_line(linear_float_type type, const char *from)
{
    if (type == LINEAR_FLOAT_F16)
        return (line){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)),
                      _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from + 1))};
    if (type == LINEAR_FLOAT_F8) return (line){load_bytes(from), load_bytes(from + 16)};
    return (line){_mm512_loadu_ps(from), _mm512_loadu_ps(from + 64)};
}

INLINE void load_pair(const char *from, line *even, line *odd)
{
    __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
    __m512i mask = _mm512_set1_epi32(-65536);
    even->low = _mm512_castsi512_ps(_mm512_slli_epi32(low, 16));
    even->high = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
    odd->low = _mm512_castsi512_ps(_mm512_and_si512(low, mask));
    odd->high = _mm512_castsi512_ps(_mm512_and_si512(high, mask));
}

/* sums[r] += x[r] * w */
INLINE void meet_line(int rows, line w, const float *x, line *sums)
{
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        __m512 value = _mm512_set1_ps(x[r * X_STRIDE]);
        sums[r].low = _mm512_fmadd_ps(value, w.low, sums[r].low);
        sums[r].high = _mm512_fmadd_ps(value, w.high, sums[r].high);
    }
}

INLINE void prefetch(bool stream, const char *at)
{
    if (stream) _mm_prefetch(at + AHEAD, _MM_HINT_T0);
}

INLINE void add_line(line values, float *out)
{
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), values.low));
    _mm512_storeu_ps(out + 16, _mm512_add_ps(_mm512_loadu_ps(out + 16), values.high));
}

INLINE void tile(linear_float_type type, bool stream, int rows, const char *panel, const float *x,
                 int64_t n, float *out)
{
    line sums[MAX_ROWS];
    int64_t i = 0;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        sums[r].low = sums[r].high = _mm512_setzero_ps();
    if (type == LINEAR_FLOAT_BF16) {
        line even, odd;
#pragma GCC unroll 1
        for (; i + 1 < n; i += 2, panel += 128) {
            load_pair(panel, &even, &odd);
            prefetch(stream, panel);
            prefetch(stream, panel + 64);
            meet_line(rows, even, x + i, sums);
            meet_line(rows, odd, x + i + 1, sums);
        }
        if (i < n) {
            load_pair(panel, &even, &odd);
            meet_line(rows, even, x + i, sums);
        }
    } else {
        const int bytes = type == LINEAR_FLOAT_F32 ? 128 : 64;
#pragma GCC unroll 1
        for (; i < n; i++, panel += bytes) {
            line w = load_line(type, panel);
            prefetch(stream, panel);
            if (bytes == 128) prefetch(stream, panel + 64);
            meet_line(rows, w, x + i, sums);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        add_line(sums[r], out + r * PANEL);
}

/* One row and two panels, or two blocks of one. */
INLINE void pair(linear_float_type type, const char *panel, size_t apart, const float *const *x,
                 int64_t n, float *out)
{
    const int64_t bytes = type == LINEAR_FLOAT_F16 ? 64 : 128;
    line sums[2], even, odd;
    int64_t i = 0;
    sums[0].low = sums[0].high = sums[1].low = sums[1].high = _mm512_setzero_ps();
    if (type == LINEAR_FLOAT_BF16) {
#pragma GCC unroll 1
        for (; i + 1 < n; i += 2, panel += bytes) {
#pragma GCC unroll 2
            for (int p = 0; p < 2; p++) {
                const char *at = panel + (size_t)p * apart;
                prefetch(true, at);
                prefetch(true, at + 64);
                load_pair(at, &even, &odd);
                meet_line(1, even, x[p] + i, &sums[p]);
                meet_line(1, odd, x[p] + i + 1, &sums[p]);
            }
        }
        for (int p = 0; i < n && p < 2; p++) {
            load_pair(panel + (size_t)p * apart, &even, &odd);
            meet_line(1, even, x[p] + i, &sums[p]);
        }
    } else {
#pragma GCC unroll 1
        for (; i < n; i++, panel += bytes) {
#pragma GCC unroll 2
            for (int p = 0; p < 2; p++) {
                const char *at = panel + (size_t)p * apart;
                prefetch(true, at);
                if (bytes == 128) prefetch(true, at + 64);
                meet_line(1, load_line(type, at), x[p] + i, &sums[p]);
            }
        }
    }
    add_line(sums[0], out);
    add_line(sums[1], out + PANEL);
}

/* sums += block * 256 * scale: what bytes are over 256 becomes what they mean. */
INLINE void add_scaled(const char *scales, line block, line *sums)
{
    const line scale = load_line(LINEAR_FLOAT_F32, scales);
    const __m512 lift = _mm512_set1_ps(256);
    sums->low = _mm512_fmadd_ps(_mm512_mul_ps(block.low, lift), scale.low, sums->low);
    sums->high = _mm512_fmadd_ps(_mm512_mul_ps(block.high, lift), scale.high, sums->high);
}

/* A tile of F8_128: as it is stored, or with bytes that are decoded to F32. */
INLINE void scaled_tile(linear_float_type type, bool stream, int rows, const char *panel,
                        const float *x, int64_t n, float *out)
{
    const int bytes = type == LINEAR_FLOAT_F32 ? 128 : 32;
    line sums[MAX_ROWS], block[MAX_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        sums[r].low = sums[r].high = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0, end = 0; end < n;) {
        const char *scales = panel;
        panel += LINEAR_FLOAT_F8_SCALES;
        end += LINEAR_FLOAT_F8_BLOCK;
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            block[r].low = block[r].high = _mm512_setzero_ps();
#pragma GCC unroll 1
        for (; i < end; i += 2, panel += 2 * bytes) {
            prefetch(stream, panel);
            meet_line(rows, load_line(type, panel), x + i, block);
            meet_line(rows, load_line(type, panel + bytes), x + i + 1, block);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            add_scaled(scales, block[r], &sums[r]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        add_line(sums[r], out + r * PANEL);
}

static void pair_f8(const char *panel, size_t apart, const float *const *x, int64_t n, float *out)
{
    line sums[2];
    sums[0].low = sums[0].high = sums[1].low = sums[1].high = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0, end = 0; end < n;) {
        const char *scales = panel;
        line block[2];
        block[0].low = block[0].high = block[1].low = block[1].high = _mm512_setzero_ps();
        panel += LINEAR_FLOAT_F8_SCALES;
        end += LINEAR_FLOAT_F8_BLOCK;
#pragma GCC unroll 1
        for (; i < end; i += 2, panel += 64) {
#pragma GCC unroll 2
            for (int p = 0; p < 2; p++) {
                const char *at = panel + (size_t)p * apart;
                prefetch(true, at);
                meet_line(1, load_line(LINEAR_FLOAT_F8, at), x[p] + i, &block[p]);
                meet_line(1, load_line(LINEAR_FLOAT_F8, at + 32), x[p] + i + 1, &block[p]);
            }
        }
        add_scaled(scales, block[0], &sums[0]);
        add_scaled(scales + apart, block[1], &sums[1]);
    }
    add_line(sums[0], out);
    add_line(sums[1], out + PANEL);
}

INLINE void store_line(float *out, line values)
{
    _mm512_storeu_ps(out, values.low);
    _mm512_storeu_ps(out + 16, values.high);
}

static void decode_f16(const void *panel, int64_t n, float *out)
{
    const char *from = panel;
    for (int64_t i = 0; i < n; i++, from += 64, out += PANEL) {
        prefetch(true, from);
        store_line(out, load_line(LINEAR_FLOAT_F16, from));
    }
}

static void decode_bf16(const void *panel, int64_t n, float *out)
{
    const char *from = panel;
    for (int64_t i = 0; i < n; i += 2, from += 128, out += 2 * PANEL) {
        line even, odd;
        load_pair(from, &even, &odd);
        prefetch(true, from);
        prefetch(true, from + 64);
        store_line(out, even);
        store_line(out + PANEL, odd);
    }
}

static void decode_f8(const void *panel, int64_t n, float *out)
{
    const char *from = panel;
    for (int64_t block = 0; block < n; block += LINEAR_FLOAT_F8_BLOCK) {
        store_line(out, load_line(LINEAR_FLOAT_F32, from));
        from += LINEAR_FLOAT_F8_SCALES;
        out += PANEL;
        for (int i = 0; i < LINEAR_FLOAT_F8_BLOCK; i++, from += PANEL, out += PANEL) {
            prefetch(true, from);
            store_line(out, load_line(LINEAR_FLOAT_F8, from));
        }
    }
}

#define TILE(NAME, FORM, TYPE, STREAM, ROWS)                                                       \
    static void NAME##_##ROWS(const void *panel, const float *x, int64_t n, float *sums)           \
    {                                                                                              \
        FORM(TYPE, STREAM, ROWS, panel, x, n, sums);                                               \
    }

#define TILES(NAME, FORM, TYPE, STREAM)                                                            \
    TILE(NAME, FORM, TYPE, STREAM, 1)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 2)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 3)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 4)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 5)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 6)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 7)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 8)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 9)                                                              \
    TILE(NAME, FORM, TYPE, STREAM, 10)                                                             \
    TILE(NAME, FORM, TYPE, STREAM, 11)                                                             \
    TILE(NAME, FORM, TYPE, STREAM, 12)                                                             \
    static linear_float_tile *const NAME[MAX_ROWS] = {NAME##_1, NAME##_2,  NAME##_3,  NAME##_4,    \
                                                      NAME##_5, NAME##_6,  NAME##_7,  NAME##_8,    \
                                                      NAME##_9, NAME##_10, NAME##_11, NAME##_12};

TILES(cached, tile, LINEAR_FLOAT_F32, false)
TILES(stream_f32, tile, LINEAR_FLOAT_F32, true)
TILES(stream_f16, tile, LINEAR_FLOAT_F16, true)
TILES(stream_bf16, tile, LINEAR_FLOAT_BF16, true)
TILES(stream_f8, scaled_tile, LINEAR_FLOAT_F8, true)
TILES(cached_f8, scaled_tile, LINEAR_FLOAT_F32, false)

#define PAIR(NAME, TYPE)                                                                           \
    static void NAME(const char *panel, size_t apart, const float *const *x, int64_t n,            \
                     float *sums)                                                                  \
    {                                                                                              \
        pair(TYPE, panel, apart, x, n, sums);                                                      \
    }

PAIR(pair_f32, LINEAR_FLOAT_F32)
PAIR(pair_f16, LINEAR_FLOAT_F16)
PAIR(pair_bf16, LINEAR_FLOAT_BF16)

/* ---- packing ------------------------------------------------------------------------------- */

/* Transposes 16 rows of 16 words. */
INLINE void transpose(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    /* r[4q + c] = word c of each quarter of rows 4q to 4q + 3 */
#pragma GCC unroll 4
    for (int q = 0; q < 16; q += 4) {
        r[q] = _mm512_unpacklo_epi64(t[q], t[q + 2]);
        r[q + 1] = _mm512_unpackhi_epi64(t[q], t[q + 2]);
        r[q + 2] = _mm512_unpacklo_epi64(t[q + 1], t[q + 3]);
        r[q + 3] = _mm512_unpackhi_epi64(t[q + 1], t[q + 3]);
    }
    /* quarters 0 and 2, then 1 and 3 of rows 0 to 7 and of rows 8 to 15 */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
        r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
        r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
        r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
    }
}

/* 16 words of 16 rows. */
INLINE void gather_square(const char *rows, size_t pitch, bool whole, int64_t present,
                          __mmask64 bytes, uint32_t *out)
{
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const char *row = rows + (size_t)i * pitch;
        r[i] = whole         ? _mm512_loadu_si512(row)
               : i < present ? _mm512_maskz_loadu_epi8(bytes, row)
                             : _mm512_setzero_si512();
    }
    transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(out + i * PANEL, r[i]);
}

/* Up to 64 bytes of each of `present` rows, `pitch` apart, as 16 words of a panel: out[word][row].
 * There are zeros for rows that are not present and after the last byte. */
static void pack_words(const char *rows, size_t pitch, int64_t present, int64_t bytes,
                       uint32_t *out)
{
    const char *second = rows + 16 * pitch;
    if (present >= PANEL && bytes == 64) {
        gather_square(rows, pitch, true, 16, 0, out);
        gather_square(second, pitch, true, 16, 0, out + 16);
    } else {
        const __mmask64 mask = bytes < 64 ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
        gather_square(rows, pitch, false, present, mask, out);
        gather_square(second, pitch, false, present - 16, mask, out + 16);
    }
}

void linear_float_pack_avx512(const op_call *call, void *packed)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    const size_t row_bytes = dtype_row_bytes(weight->type, weight->shape[1]);
    const size_t panel_bytes = linear_float_panel_bytes(weight, weight->shape[1]);
    const bool words =
        weight->type == DTYPE_BF16 || (weight->type == DTYPE_F32 && row_bytes % 64 == 0);
    if (!words || linear_float_is_narrow(weight)) {
        linear_float_pack(call, packed);
        return;
    }
    buffer_populate(tensor_row(weight, call->begin),
                    (size_t)((call->end - call->begin) * weight->stride[0]));
    for (int64_t first = call->begin; first < call->end; first += PANEL) {
        const char *rows = tensor_row(weight, first);
        char *out = (char *)packed + (size_t)(first / PANEL) * panel_bytes;
        for (size_t at = 0; at < row_bytes; at += 64, out += 64 * PANEL)
            pack_words(rows + at, (size_t)weight->stride[0], call->end - first,
                       row_bytes - at < 64 ? (int64_t)(row_bytes - at) : 64, (uint32_t *)out);
    }
}

static const linear_float_kernels kernels = {
    .max_rows = MAX_ROWS,
    .stream = {[LINEAR_FLOAT_F32] = stream_f32,
               [LINEAR_FLOAT_F16] = stream_f16,
               [LINEAR_FLOAT_BF16] = stream_bf16,
               [LINEAR_FLOAT_F8] = stream_f8},
    .pair = {[LINEAR_FLOAT_F32] = pair_f32,
             [LINEAR_FLOAT_F16] = pair_f16,
             [LINEAR_FLOAT_BF16] = pair_bf16,
             [LINEAR_FLOAT_F8] = pair_f8},
    .cached = cached,
    .cached_f8 = cached_f8,
    .decode = {[LINEAR_FLOAT_F16] = decode_f16,
               [LINEAR_FLOAT_BF16] = decode_bf16,
               [LINEAR_FLOAT_F8] = decode_f8},
};

void linear_float_avx512(const op_call *call)
{
    linear_float_run(call, &kernels);
}
