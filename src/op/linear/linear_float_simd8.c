/* linear with float weights in vectors of four or eight: see linear_float.h.
 *
 * A tile is up to 3 rows by a panel: with AVX2 12 sums, three broadcast activations and a weight
 * fill the 16 registers, with NEON 24 sums, three activations and some weights 32. SSE2 has
 * registers for the sums of one row. The products of one row and of a number of blocks are the same
 * functions with the number a constant.
 */
#include "op/linear/linear_float.h"

#include "op/simd.h"

#include <string.h>

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    VECTORS = PANEL / LANES,
    MAX_ROWS = VECTORS == 8 && SIMD_REGISTERS == 16 ? 1 : 3,
    AHEAD = 512, /* prefetch distance of a streamed panel, in bytes */
};

#define INLINE   static inline __attribute__((always_inline))
#define UNROLL   _Pragma("GCC unroll 3")
#define UNROLL8  _Pragma("GCC unroll 8")
#define UNROLL24 _Pragma("GCC unroll 24")

/* LANES bytes of E4M3 as F16, which is their value over 256. */
INLINE vf load_bytes(const char *from)
{
#if defined(__AVX2__)
    __m128i halves = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)from));
    halves = _mm_and_si128(_mm_slli_epi16(halves, 7), _mm_set1_epi16((int16_t)0xbfff));
    return _mm256_cvtph_ps(halves);
#else
    vb bytes;
    memcpy(&bytes, from, sizeof bytes);
    const vh wide = __builtin_convertvector(bytes, vh);
    return vf_from_f16((wide & 0x80) << 8 | (wide & 0x7f) << 7);
#endif
}

INLINE vf load_vector(linear_float_type type, const char *from, int v)
{
    if (type == LINEAR_FLOAT_F8) return load_bytes(from + LANES * v);
    return vf_load(type == LINEAR_FLOAT_F16 ? DTYPE_F16 : DTYPE_F32, from, LANES * v);
}

/* Features of vector v, of the first or the second input of a pair. */
INLINE vf load_half(const char *from, int v, bool odd)
{
#if defined(__AVX2__)
    __m256i pairs = _mm256_loadu_si256((const __m256i *)from + v);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32(-65536))
                                   : _mm256_slli_epi32(pairs, 16));
#else
    const vw pairs = (vw)vf_loadu((const float *)from + LANES * v);
    return (vf)(odd ? pairs & 0xffff0000 : pairs << 16);
#endif
}

/* sums[r] += x[r] * an input's weights */
INLINE void meet_input(linear_float_type type, bool odd, int rows, const char *panel,
                       const float *x, vf sums[3][VECTORS])
{
    vf value[3];
    UNROLL for (int r = 0; r < rows; r++) value[r] = vf_set1(x[r * X_STRIDE]);
    UNROLL8 for (int v = 0; v < VECTORS; v++)
    {
        vf w = type == LINEAR_FLOAT_BF16 ? load_half(panel, v, odd) : load_vector(type, panel, v);
        UNROLL for (int r = 0; r < rows; r++) sums[r][v] = vf_fma(value[r], w, sums[r][v]);
    }
}

INLINE void prefetch(bool stream, const char *at)
{
    if (stream) __builtin_prefetch(at + AHEAD);
}

INLINE void tile(linear_float_type type, bool stream, int rows, const char *panel, const float *x,
                 int64_t n, float *out)
{
    vf sums[3][VECTORS];
    UNROLL24 for (int i = 0; i < rows * VECTORS; i++) sums[i / VECTORS][i % VECTORS] = vf_zero();
    if (type == LINEAR_FLOAT_BF16) {
        int64_t i = 0;
#pragma GCC unroll 1
        for (; i + 1 < n; i += 2, panel += 128) {
            prefetch(stream, panel);
            prefetch(stream, panel + 64);
            meet_input(type, false, rows, panel, x + i, sums);
            meet_input(type, true, rows, panel, x + i + 1, sums);
        }
        if (i < n) meet_input(type, false, rows, panel, x + i, sums);
    } else {
        const int bytes = type == LINEAR_FLOAT_F32 ? 128 : 64;
#pragma GCC unroll 1
        for (int64_t i = 0; i < n; i++, panel += bytes) {
            prefetch(stream, panel);
            if (bytes == 128) prefetch(stream, panel + 64);
            meet_input(type, false, rows, panel, x + i, sums);
        }
    }
    UNROLL24 for (int i = 0; i < rows * VECTORS; i++, out += LANES)
        vf_storeu(out, vf_add(vf_loadu(out), sums[i / VECTORS][i % VECTORS]));
}

INLINE void add_pair(vf sums[2][3][VECTORS], float *out)
{
    UNROLL24 for (int v = 0; v < 2 * VECTORS; v++, out += LANES)
        vf_storeu(out, vf_add(vf_loadu(out), sums[v / VECTORS][0][v % VECTORS]));
}

/* One row and two panels, or two blocks of one. */
INLINE void pair(linear_float_type type, const char *panel, size_t apart, const float *const *x,
                 int64_t n, float *out)
{
    const int64_t bytes = type == LINEAR_FLOAT_F16 ? 64 : 128;
    const int64_t step = type == LINEAR_FLOAT_BF16 ? 2 : 1;
    if (2 * VECTORS >= SIMD_REGISTERS) { /* the sums of two do not fit */
        tile(type, true, 1, panel, x[0], n, out);
        tile(type, true, 1, panel + apart, x[1], n, out + PANEL);
        return;
    }
    vf sums[2][3][VECTORS];
    int64_t i = 0;
    UNROLL8 for (int v = 0; v < VECTORS; v++) sums[0][0][v] = sums[1][0][v] = vf_zero();
#pragma GCC unroll 1
    for (; i + step <= n; i += step, panel += bytes) {
        UNROLL for (int p = 0; p < 2; p++)
        {
            const char *at = panel + (size_t)p * apart;
            prefetch(true, at);
            if (bytes == 128) prefetch(true, at + 64);
            meet_input(type, false, 1, at, x[p] + i, sums[p]);
            if (step == 2) meet_input(type, true, 1, at, x[p] + i + 1, sums[p]);
        }
    }
    for (int p = 0; i < n && p < 2; p++)
        meet_input(type, false, 1, panel + (size_t)p * apart, x[p] + i, sums[p]);
    add_pair(sums, out);
}

/* sums += block * 256 * scale: what bytes are over 256 becomes what they mean. */
INLINE void add_scaled(const char *scales, const vf block[VECTORS], vf sums[VECTORS])
{
    UNROLL8 for (int v = 0; v < VECTORS; v++) sums[v] =
        vf_fma(vf_mul(block[v], vf_set1(256)), load_vector(LINEAR_FLOAT_F32, scales, v), sums[v]);
}

/* A tile of F8_128: as it is stored, or with bytes that are decoded to F32. */
INLINE void scaled_tile(linear_float_type type, bool stream, int rows, const char *panel,
                        const float *x, int64_t n, float *out)
{
    const int bytes = type == LINEAR_FLOAT_F32 ? 128 : 32;
    vf sums[3][VECTORS], block[3][VECTORS];
    UNROLL24 for (int i = 0; i < rows * VECTORS; i++) sums[i / VECTORS][i % VECTORS] = vf_zero();
#pragma GCC unroll 1
    for (int64_t i = 0, end = 0; end < n;) {
        const char *scales = panel;
        panel += LINEAR_FLOAT_F8_SCALES;
        end += LINEAR_FLOAT_F8_BLOCK;
        UNROLL24 for (int k = 0; k < rows * VECTORS; k++) block[k / VECTORS][k % VECTORS] =
            vf_zero();
#pragma GCC unroll 1
        for (; i < end; i++, panel += bytes) {
            prefetch(stream, panel);
            meet_input(type, false, rows, panel, x + i, block);
        }
        UNROLL for (int r = 0; r < rows; r++) add_scaled(scales, block[r], sums[r]);
    }
    UNROLL24 for (int i = 0; i < rows * VECTORS; i++, out += LANES)
        vf_storeu(out, vf_add(vf_loadu(out), sums[i / VECTORS][i % VECTORS]));
}

/* A panel after the other: what is read at a time is not the limit here. */
static void pair_f8(const char *panel, size_t apart, const float *const *x, int64_t n, float *out)
{
    scaled_tile(LINEAR_FLOAT_F8, true, 1, panel, x[0], n, out);
    scaled_tile(LINEAR_FLOAT_F8, true, 1, panel + apart, x[1], n, out + PANEL);
}

static void decode_f16(const void *panel, int64_t n, float *out)
{
    const char *from = panel;
    for (int64_t i = 0; i < n; i++, from += 64, out += PANEL) {
        prefetch(true, from);
        UNROLL8 for (int v = 0; v < VECTORS; v++)
            vf_storeu(out + LANES * v, load_vector(LINEAR_FLOAT_F16, from, v));
    }
}

static void decode_bf16(const void *panel, int64_t n, float *out)
{
    const char *from = panel;
    for (int64_t i = 0; i < n; i += 2, from += 128, out += 2 * PANEL) {
        prefetch(true, from);
        prefetch(true, from + 64);
        UNROLL8 for (int v = 0; v < VECTORS; v++)
        {
            vf_storeu(out + LANES * v, load_half(from, v, false));
            vf_storeu(out + PANEL + LANES * v, load_half(from, v, true));
        }
    }
}

static void decode_f8(const void *panel, int64_t n, float *out)
{
    const char *from = panel;
    for (int64_t block = 0; block < n; block += LINEAR_FLOAT_F8_BLOCK) {
        memcpy(out, from, LINEAR_FLOAT_F8_SCALES);
        from += LINEAR_FLOAT_F8_SCALES;
        out += PANEL;
        for (int i = 0; i < LINEAR_FLOAT_F8_BLOCK; i++, from += PANEL, out += PANEL) {
            prefetch(true, from);
            UNROLL8 for (int v = 0; v < VECTORS; v++)
                vf_storeu(out + LANES * v, load_vector(LINEAR_FLOAT_F8, from, v));
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
    static linear_float_tile *const NAME[] = {NAME##_1, NAME##_2, NAME##_3};

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

SIMD_KERNEL(linear_float)(const op_call *call)
{
    linear_float_run(call, &kernels);
}
