/* linear with float weights, AVX-512: see linear_float.h.
 *
 * A tile is up to 12 rows by a panel of two vectors: 24 sums, two weights and a broadcast
 * activation fill 27 of the 32 registers, and 14 loads serve 24 fused multiply-adds. BF16 is
 * widened to float32 by a shift and a mask; vdpbf16ps runs at half the rate of float32 on the
 * processors that have it and rounds differently. The kernels for each number of rows are one
 * inlined function with the number a constant.
 */
#include "op/linear/linear_float.h"

#include <immintrin.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    MAX_ROWS = 12,
    AHEAD = 2048, /* bytes that a streamed panel is prefetched ahead */
};

#define INLINE static inline __attribute__((always_inline))

/* The line's features 0..15 and 16..31. */
INLINE void load_line(linear_float_type type, const char *line, __m512 *low, __m512 *high)
{
    if (type == LINEAR_FLOAT_F32) {
        *low = _mm512_loadu_ps(line);
        *high = _mm512_loadu_ps(line + 64);
        return;
    }
    if (type == LINEAR_FLOAT_F16) {
        *low = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)line));
        *high = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)line + 1));
        return;
    }
    __m512i pairs = _mm512_loadu_si512(line);
    *low = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *high = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

INLINE void tile(linear_float_type type, bool stream, int rows, const void *lines, const float *x,
                 int64_t n, float *sums)
{
    __m512 low[MAX_ROWS], high[MAX_ROWS];
    const size_t line_bytes = type == LINEAR_FLOAT_F32 ? 128 : 64;
    const char *line = lines;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        low[r] = high[r] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0; i < n; i++, line += line_bytes) {
        __m512 w_low, w_high;
        load_line(type, line, &w_low, &w_high);
        if (stream) {
            _mm_prefetch(line + AHEAD, _MM_HINT_T0);
            if (line_bytes == 128) _mm_prefetch(line + AHEAD + 64, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512 value = _mm512_set1_ps(x[r * X_STRIDE + i]);
            low[r] = _mm512_fmadd_ps(value, w_low, low[r]);
            high[r] = _mm512_fmadd_ps(value, w_high, high[r]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        float *sum = sums + r * PANEL;
        _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), low[r]));
        _mm512_storeu_ps(sum + 16, _mm512_add_ps(_mm512_loadu_ps(sum + 16), high[r]));
    }
}

INLINE void decode(linear_float_type type, const void *lines, int64_t n, float *out)
{
    const char *line = lines;
    for (int64_t i = 0; i < n; i++, line += 64, out += PANEL) {
        __m512 low, high;
        load_line(type, line, &low, &high);
        _mm_prefetch(line + AHEAD, _MM_HINT_T0);
        _mm512_storeu_ps(out, low);
        _mm512_storeu_ps(out + 16, high);
    }
}

#define TILE(NAME, TYPE, STREAM, ROWS)                                                             \
    static void NAME##_##ROWS(const void *lines, const float *x, int64_t n, float *sums)           \
    {                                                                                              \
        tile(TYPE, STREAM, ROWS, lines, x, n, sums);                                               \
    }

#define TILES(NAME, TYPE, STREAM)                                                                  \
    TILE(NAME, TYPE, STREAM, 1)                                                                    \
    TILE(NAME, TYPE, STREAM, 2)                                                                    \
    TILE(NAME, TYPE, STREAM, 3)                                                                    \
    TILE(NAME, TYPE, STREAM, 4)                                                                    \
    TILE(NAME, TYPE, STREAM, 5)                                                                    \
    TILE(NAME, TYPE, STREAM, 6)                                                                    \
    TILE(NAME, TYPE, STREAM, 7)                                                                    \
    TILE(NAME, TYPE, STREAM, 8)                                                                    \
    TILE(NAME, TYPE, STREAM, 9)                                                                    \
    TILE(NAME, TYPE, STREAM, 10)                                                                   \
    TILE(NAME, TYPE, STREAM, 11)                                                                   \
    TILE(NAME, TYPE, STREAM, 12)                                                                   \
    static linear_float_tile *const NAME[MAX_ROWS] = {NAME##_1, NAME##_2,  NAME##_3,  NAME##_4,    \
                                                      NAME##_5, NAME##_6,  NAME##_7,  NAME##_8,    \
                                                      NAME##_9, NAME##_10, NAME##_11, NAME##_12};

TILES(cached, LINEAR_FLOAT_F32, false)
TILES(stream_f32, LINEAR_FLOAT_F32, true)
TILES(stream_f16, LINEAR_FLOAT_F16, true)
TILES(stream_bf16, LINEAR_FLOAT_BF16, true)

static void decode_f16(const void *lines, int64_t n, float *out)
{
    decode(LINEAR_FLOAT_F16, lines, n, out);
}

static void decode_bf16(const void *lines, int64_t n, float *out)
{
    decode(LINEAR_FLOAT_BF16, lines, n, out);
}

static const linear_float_kernels kernels = {
    .max_rows = MAX_ROWS,
    .stream = {[LINEAR_FLOAT_F32] = stream_f32,
               [LINEAR_FLOAT_F16] = stream_f16,
               [LINEAR_FLOAT_BF16] = stream_bf16},
    .cached = cached,
    .decode = {[LINEAR_FLOAT_F16] = decode_f16, [LINEAR_FLOAT_BF16] = decode_bf16},
};

void linear_float_avx512(const op_call *call)
{
    linear_float_run(call, &kernels);
}
