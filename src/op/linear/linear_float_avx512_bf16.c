/* linear with BF16 weights and x rounded to BF16, AVX-512 BF16: see linear_float.h.
 *
 * vdpbf16ps adds the products of a pair of inputs to a float32 sum: weights are used as they are
 * packed, and a word of x is broadcast to 16 features. It has up to the rate of a fused
 * multiply-add, which makes half as many products. Denormals are zeros.
 */
#include "op/linear/linear_float.h"

#include <immintrin.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    MAX_ROWS = 12,
    AHEAD = 512, /* prefetch distance of a streamed panel, in bytes */
};

#define INLINE static inline __attribute__((always_inline))

static void round_x(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 32) {
        const int64_t left = n - i;
        const __mmask32 present = (__mmask32)(left >= 32 ? 0xffffffff : ((uint64_t)1 << left) - 1);
        const __m512 low = _mm512_maskz_loadu_ps((__mmask16)present, x + i);
        const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(present >> 16), x + i + 16);
        const int64_t words = left >= 32 ? 16 : (left + 1) / 2;
        _mm512_mask_storeu_epi32(x + i / 2, (__mmask16)((1u << words) - 1),
                                 (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* Two vectors of features. */
typedef struct line {
    __m512 low, high;
} line;

/* sums[r] += pair * w, for a pair of inputs of each row. */
INLINE void meet_pair(int rows, bool stream, const char *panel, const float *x, line *sums)
{
    const __m512bh low = (__m512bh)_mm512_loadu_si512(panel);
    const __m512bh high = (__m512bh)_mm512_loadu_si512(panel + 64);
    if (stream) {
        _mm_prefetch(panel + AHEAD, _MM_HINT_T0);
        _mm_prefetch(panel + AHEAD + 64, _MM_HINT_T0);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        const __m512bh value = (__m512bh)_mm512_set1_ps(x[r * X_STRIDE]);
        sums[r].low = _mm512_dpbf16_ps(sums[r].low, value, low);
        sums[r].high = _mm512_dpbf16_ps(sums[r].high, value, high);
    }
}

INLINE void add_line(line values, float *out)
{
    _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), values.low));
    _mm512_storeu_ps(out + 16, _mm512_add_ps(_mm512_loadu_ps(out + 16), values.high));
}

INLINE void tile(bool stream, int rows, const char *panel, const float *x, int64_t n, float *out)
{
    line sums[MAX_ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        sums[r].low = sums[r].high = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0; i < n; i += 2, x++, panel += 128)
        meet_pair(rows, stream, panel, x, sums);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        add_line(sums[r], out + r * PANEL);
}

/* One row and two panels, or two blocks of one. */
static void pair(const char *panel, size_t apart, const float *const *x, int64_t n, float *out)
{
    line sums[2];
    sums[0].low = sums[0].high = sums[1].low = sums[1].high = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0; i < n; i += 2, panel += 128) {
        meet_pair(1, true, panel, x[0] + i / 2, &sums[0]);
        meet_pair(1, true, panel + apart, x[1] + i / 2, &sums[1]);
    }
    add_line(sums[0], out);
    add_line(sums[1], out + PANEL);
}

#define TILE(NAME, STREAM, ROWS)                                                                   \
    static void NAME##_##ROWS(const void *panel, const float *x, int64_t n, float *sums)           \
    {                                                                                              \
        tile(STREAM, ROWS, panel, x, n, sums);                                                     \
    }

#define TILES(NAME, STREAM)                                                                        \
    TILE(NAME, STREAM, 1)                                                                          \
    TILE(NAME, STREAM, 2)                                                                          \
    TILE(NAME, STREAM, 3)                                                                          \
    TILE(NAME, STREAM, 4)                                                                          \
    TILE(NAME, STREAM, 5)                                                                          \
    TILE(NAME, STREAM, 6)                                                                          \
    TILE(NAME, STREAM, 7)                                                                          \
    TILE(NAME, STREAM, 8)                                                                          \
    TILE(NAME, STREAM, 9)                                                                          \
    TILE(NAME, STREAM, 10)                                                                         \
    TILE(NAME, STREAM, 11)                                                                         \
    TILE(NAME, STREAM, 12)                                                                         \
    static linear_float_tile *const NAME[MAX_ROWS] = {NAME##_1, NAME##_2,  NAME##_3,  NAME##_4,    \
                                                      NAME##_5, NAME##_6,  NAME##_7,  NAME##_8,    \
                                                      NAME##_9, NAME##_10, NAME##_11, NAME##_12};

TILES(cached, false)
TILES(stream, true)

static const linear_float_kernels kernels = {
    .max_rows = MAX_ROWS,
    .round = round_x,
    .stream = {[LINEAR_FLOAT_BF16] = stream},
    .pair = {[LINEAR_FLOAT_BF16] = pair},
    .cached = cached,
};

void linear_float_avx512_bf16(const op_call *call)
{
    linear_float_run(call, &kernels);
}
