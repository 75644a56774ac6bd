/* linear with float weights, AVX2 with FMA and F16C: see linear_float.h.
 *
 * A tile is up to 3 rows by a panel of four vectors: 12 sums, three broadcast activations and a
 * weight fill the 16 registers, and 7 loads serve 12 fused multiply-adds.
 */
#include "op/linear/linear_float.h"

#include <immintrin.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    MAX_ROWS = 3,
    VECTORS = 4,  /* of a panel */
    AHEAD = 2048, /* bytes that a streamed panel is prefetched ahead */
};

#define INLINE static inline __attribute__((always_inline))

/* Features 8 * v .. 8 * v + 7 of the line. */
INLINE __m256 load_vector(linear_float_type type, const char *line, int v)
{
    if (type == LINEAR_FLOAT_F32) return _mm256_loadu_ps((const float *)line + 8 * v);
    if (type == LINEAR_FLOAT_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)line + v));
    __m256i pairs = _mm256_loadu_si256((const __m256i *)line + v % 2);
    return _mm256_castsi256_ps(v < 2 ? _mm256_slli_epi32(pairs, 16)
                                     : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}

INLINE void tile(linear_float_type type, bool stream, int rows, const void *lines, const float *x,
                 int64_t n, float *sums)
{
    __m256 sum[MAX_ROWS][VECTORS];
    const size_t line_bytes = type == LINEAR_FLOAT_F32 ? 128 : 64;
    const char *line = lines;
#pragma GCC unroll 12
    for (int i = 0; i < rows * VECTORS; i++)
        sum[i / VECTORS][i % VECTORS] = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int64_t i = 0; i < n; i++, line += line_bytes) {
        if (stream) {
            _mm_prefetch(line + AHEAD, _MM_HINT_T0);
            if (line_bytes == 128) _mm_prefetch(line + AHEAD + 64, _MM_HINT_T0);
        }
        __m256 value[MAX_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
            value[r] = _mm256_broadcast_ss(x + r * X_STRIDE + i);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            __m256 w = load_vector(type, line, v);
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                sum[r][v] = _mm256_fmadd_ps(value[r], w, sum[r][v]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows * VECTORS; i++) {
        __m256 before = _mm256_loadu_ps(sums + 8 * i);
        _mm256_storeu_ps(sums + 8 * i, _mm256_add_ps(before, sum[i / VECTORS][i % VECTORS]));
    }
}

INLINE void decode(linear_float_type type, const void *lines, int64_t n, float *out)
{
    const char *line = lines;
    for (int64_t i = 0; i < n; i++, line += 64, out += PANEL) {
        _mm_prefetch(line + AHEAD, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            _mm256_storeu_ps(out + 8 * v, load_vector(type, line, v));
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
    static linear_float_tile *const NAME[MAX_ROWS] = {NAME##_1, NAME##_2, NAME##_3};

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

void linear_float_avx2(const op_call *call)
{
    linear_float_run(call, &kernels);
}
