/* linear with BF16 weights and x rounded to BF16, ARM's BF16: see linear_float.h.
 *
 * bfdot adds the products of a pair of inputs to a float32 sum: weights are used as they are
 * packed, and a pair of x is any lane of a register. It makes twice the products of a fused
 * multiply-add. Three rows by a panel are 24 sums.
 */
#include "op/linear/linear_float.h"

#include "op/simd.h"

enum {
    PANEL = LINEAR_FLOAT_PANEL,
    X_STRIDE = LINEAR_FLOAT_X_STRIDE,
    VECTORS = PANEL / LANES,
    MAX_ROWS = 3,
    AHEAD = 512, /* prefetch distance of a streamed panel, in bytes */
};

#define INLINE static inline __attribute__((always_inline))

/* vf_to_bf16() of 32 inputs at a time: x has room for a whole block. */
static void round_x(float *x, int64_t n)
{
    uint16_t *to = (uint16_t *)x;
    for (int64_t i = 0; i < n; i += LANES)
        vf_store_n(DTYPE_BF16, to, i, LANES, vf_load_n(DTYPE_F32, x, i, n - i));
}

INLINE void meet_pair(int rows, const char *panel, const float *x, vf sums[MAX_ROWS][VECTORS])
{
    bfloat16x8_t value[MAX_ROWS];
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++)
        value[r] = (bfloat16x8_t)vf_set1(x[r * X_STRIDE]);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const bfloat16x8_t w = (bfloat16x8_t)vf_loadu((const float *)panel + LANES * v);
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
            sums[r][v] = vbfdotq_f32(sums[r][v], w, value[r]);
    }
}

INLINE void tile(bool stream, int rows, const char *panel, const float *x, int64_t n, float *out)
{
    vf sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * VECTORS; i++)
        sums[i / VECTORS][i % VECTORS] = vf_zero();
#pragma GCC unroll 1
    for (int64_t i = 0; i < n; i += 2, x++, panel += 4 * PANEL) {
        if (stream) __builtin_prefetch(panel + AHEAD);
        if (stream) __builtin_prefetch(panel + AHEAD + 64);
        meet_pair(rows, panel, x, sums);
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * VECTORS; i++, out += LANES)
        vf_storeu(out, vf_add(vf_loadu(out), sums[i / VECTORS][i % VECTORS]));
}

static void pair(const char *panel, size_t apart, const float *const *x, int64_t n, float *out)
{
    tile(true, 1, panel, x[0], n, out);
    tile(true, 1, panel + apart, x[1], n, out + PANEL);
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
    static linear_float_tile *const NAME[MAX_ROWS] = {NAME##_1, NAME##_2, NAME##_3};

TILES(cached, false)
TILES(stream, true)

static const linear_float_kernels kernels = {
    .max_rows = MAX_ROWS,
    .round = round_x,
    .stream = {[LINEAR_FLOAT_BF16] = stream},
    .pair = {[LINEAR_FLOAT_BF16] = pair},
    .cached = cached,
};

void linear_float_neon_bf16(const op_call *call)
{
    linear_float_run(call, &kernels);
}
