/* linear on the GPU, in two forms that take any types and any number of rows.
 *
 * Few rows: one warp per output feature, where linear_eight.cuh does not apply. A lane takes groups
 * of eight elements, 256 apart, and the lanes are added at the end: the order depends only
 * on in_features. More rows: tiles on the tensor cores. Both sides are split into three BF16
 * parts, which hold all 24 bits of a float, and the six larger of their nine products are added in
 * float32. If the weight is BF16 three products suffice.
 */
#pragma once

#include "op/device.cuh"
#include "op/linear/linear.h"
#include "op/linear/linear_sizes.h"
#include "op/tensor_core.cuh"
#include "tensor/decode_all.cuh"

/* Adds bias and residual and writes element (row, o). */
DEVICE_FN void linear_store(const op_call &call, int64_t row, int64_t o, float sum)
{
    const tensor &bias = call.tensors[LINEAR_BIAS], &residual = call.tensors[LINEAR_RESIDUAL];
    const tensor &out = call.tensors[LINEAR_OUT];
    if (bias.rank) sum += device_load(bias.type, bias.data, o);
    if (residual.rank) sum += device_load(residual.type, device_row(residual, row), o);
    device_store(out.type, device_row(out, row), o, sum);
}

/* ---- few rows ------------------------------------------------------------------------------ */

enum { LINEAR_STEP = 8 * WARP, LINEAR_AHEAD = 8, LINEAR_X_FLOATS = 8192 };

/* Loads elements [first, first + count) of rows [0, M) as floats into shared memory, zeros where
 * there are none; a row has LINEAR_X_FLOATS / M of it. */
template <int M>
DEVICE_FN void linear_load_x(const tensor &x, int64_t first_row, int64_t first, float *shared)
{
    const int chunk = LINEAR_X_FLOATS / M;
    int64_t n = x.shape[1];
    int wanted =
        (int)min((int64_t)chunk, (n - first + LINEAR_STEP - 1) / LINEAR_STEP * LINEAR_STEP);
    for (int m = 0; m < M; m++) {
        bool there = first_row + m < x.shape[0];
        const char *row = device_row(x, first_row + m);
        if (there && x.type == DTYPE_F32 && first + wanted <= n &&
            device_aligned((const float *)row + first, 16)) {
            for (int i = 4 * threadIdx.x; i < wanted; i += 4 * blockDim.x)
                *(float4 *)(shared + m * chunk + i) =
                    *(const float4 *)((const float *)row + first + i);
            continue;
        }
        for (int i = threadIdx.x; i < wanted; i += blockDim.x)
            shared[m * chunk + i] =
                there && first + i < n ? device_load(x.type, row, first + i) : 0.0f;
    }
}

/* Adds the products of eight weights and elements [i, i + 8) of M rows of x. */
template <int M>
DEVICE_FN void linear_add_eight(const float *w, int i, const float *shared, float *sums)
{
    const int chunk = LINEAR_X_FLOATS / M;
    for (int m = 0; m < M; m++) {
        const float4 *x = (const float4 *)(shared + m * chunk + i);
        float4 low = x[0], high = x[1];
        sums[m] = fmaf(w[0], low.x, sums[m]);
        sums[m] = fmaf(w[1], low.y, sums[m]);
        sums[m] = fmaf(w[2], low.z, sums[m]);
        sums[m] = fmaf(w[3], low.w, sums[m]);
        sums[m] = fmaf(w[4], high.x, sums[m]);
        sums[m] = fmaf(w[5], high.y, sums[m]);
        sums[m] = fmaf(w[6], high.z, sums[m]);
        sums[m] = fmaf(w[7], high.w, sums[m]);
    }
}

/* Adds the products of a chunk of a weight row to the sums of M rows of x. */
template <dtype T, int M>
DEVICE_FN void linear_add(dtype type, const char *weight, int64_t n, int64_t first,
                          const float *shared, float *sums)
{
    const int chunk = LINEAR_X_FLOATS / M;
    int count = (int)min((int64_t)chunk, n - first), i = 8 * (int)(threadIdx.x % WARP);
    const uint4 *halves = (const uint4 *)((const uint16_t *)weight + first);
    /* Without branches several loads are in flight at a time. */
    if ((T == DTYPE_F16 || T == DTYPE_BF16) && device_aligned(halves, 16)) {
        for (; i + (LINEAR_AHEAD - 1) * LINEAR_STEP + 8 <= count; i += LINEAR_AHEAD * LINEAR_STEP) {
            uint4 words[LINEAR_AHEAD];
#pragma unroll
            for (int k = 0; k < LINEAR_AHEAD; k++)
                words[k] = __ldg(halves + (i + k * LINEAR_STEP) / 8);
#pragma unroll
            for (int k = 0; k < LINEAR_AHEAD; k++) {
                float w[8];
                decode_words<T>(words[k], w);
                linear_add_eight<M>(w, i + k * LINEAR_STEP, shared, sums);
            }
        }
    }
#pragma unroll 4
    for (; i < count; i += LINEAR_STEP) {
        float w[8];
        decode8_all_of<T>(type, weight, first + i, n, w);
        linear_add_eight<M>(w, i, shared, sums);
    }
}

/* Features [begin, end) of those of rows [first_row, first_row + M) that exist; the warps' rounds
 * are `step` features apart. */
template <dtype T, int M>
DEVICE_FN void linear_few_block(const op_call &call, int64_t first_row, int64_t begin, int64_t end,
                                int64_t step, float *shared)
{
    const tensor &x = call.tensors[LINEAR_X], &weight = call.tensors[LINEAR_WEIGHT];
    int64_t n = x.shape[1];
    const int chunk = LINEAR_X_FLOATS / M;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int64_t group = begin; group < end; group += step) {
        int64_t o = group + warp;
        float sums[M] = {0};
        for (int64_t first = 0; first < n || first == 0; first += chunk) {
            if (n > chunk || group == begin) { /* a single chunk is loaded once */
                __syncthreads();
                linear_load_x<M>(x, first_row, first, shared);
                __syncthreads();
            }
            if (o < end)
                linear_add<T, M>(weight.type, device_row(weight, o), n, first, shared, sums);
        }
        for (int m = 0; m < M; m++) {
            float sum = warp_sum(sums[m]);
            if (lane == m && o < end && first_row + m < x.shape[0])
                linear_store(call, first_row + m, o, sum);
        }
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

enum {
    TILE_ROWS = LINEAR_TILE_ROWS, /* of x */
    TILE_FEATURES = LINEAR_TILE_ROWS,
    TILE_DEPTH = 32,
    TILE_THREADS = LINEAR_TILE_THREADS,
    TILE_PITCH = TILE_DEPTH + 8, /* BF16 from row to row in shared memory: no bank conflicts */
};

enum { PARTS = 3 };

DEVICE_FN uint32_t bf16_pair(float a, float b)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&pair;
}

/* Subtracts the nearest BF16 from each of two floats, and returns both BF16. */
DEVICE_FN uint32_t bf16_take(float *a, float *b)
{
    uint32_t part = bf16_pair(*a, *b);
    *a -= __uint_as_float(part << 16);
    *b -= __uint_as_float(part & 0xffff0000u);
    return part;
}

struct linear_tile {
    uint16_t x[PARTS][TILE_ROWS][TILE_PITCH]; /* from the highest part to the lowest */
    uint16_t w[PARTS][TILE_FEATURES][TILE_PITCH];
};

/* Stores elements [k, k + TILE_DEPTH) of both sides in the tile, eight per thread and round. */
DEVICE_FN void linear_fill_tile(const op_call &call, int64_t row, int64_t o, int64_t end, int64_t k,
                                linear_tile &tile)
{
    const tensor &x = call.tensors[LINEAR_X], &weight = call.tensors[LINEAR_WEIGHT];
    int64_t n = x.shape[1];
    for (int i = threadIdx.x; i < (TILE_ROWS + TILE_FEATURES) * TILE_DEPTH / 8; i += TILE_THREADS) {
        int line = i / (TILE_DEPTH / 8), column = i % (TILE_DEPTH / 8) * 8;
        bool of_x = line < TILE_ROWS;
        int64_t at = of_x ? row + line : o + line - TILE_ROWS;
        float values[8] = {0};
        if (k + column < n && at < (of_x ? x.shape[0] : end))
            decode8_all_of<DTYPE_COUNT>(of_x ? x.type : weight.type,
                                        device_row(of_x ? x : weight, at), k + column, n, values);
        for (int part = 0; part < PARTS; part++) {
            uint16_t *to = of_x ? tile.x[part][line] : tile.w[part][line - TILE_ROWS];
            for (int j = 0; j < 8; j += 2)
                *(uint32_t *)(to + column + j) = bf16_take(&values[j], &values[j + 1]);
        }
    }
}

/* The 16 x 16 of rows [row, row + 16) at column k, as mma's left operand. */
DEVICE_FN void load_left(const uint16_t (*rows)[TILE_PITCH], int row, int k, uint32_t *a)
{
    int r = row + threadIdx.x % WARP / 4, c = k + threadIdx.x % 4 * 2;
    a[0] = *(const uint32_t *)&rows[r][c];
    a[1] = *(const uint32_t *)&rows[r + 8][c];
    a[2] = *(const uint32_t *)&rows[r][c + 8];
    a[3] = *(const uint32_t *)&rows[r + 8][c + 8];
}

/* The 8 features [o, o + 8) at column k, as mma's right operand. */
DEVICE_FN void load_right(const uint16_t (*rows)[TILE_PITCH], int o, int k, uint32_t *b)
{
    int r = o + threadIdx.x % WARP / 4, c = k + threadIdx.x % 4 * 2;
    b[0] = *(const uint32_t *)&rows[r][c];
    b[1] = *(const uint32_t *)&rows[r][c + 8];
}

/* Each of four warps has 32 x 32 of the tile: sums[2][4] products of 16 x 8. */
DEVICE_FN void linear_multiply_tile(const linear_tile &tile, bool exact_weight, float sums[2][4][4])
{
    int warp = threadIdx.x / WARP, row = warp / 2 * 32, o = warp % 2 * 32;
    for (int k = 0; k < TILE_DEPTH; k += 16) {
        uint32_t x[PARTS][2][4];
        for (int part = 0; part < PARTS; part++)
            for (int i = 0; i < 2; i++)
                load_left(tile.x[part], row + 16 * i, k, x[part][i]);
        for (int j = 0; j < 4; j++) {
            for (int part = PARTS - 1; part >= 0; part--) {
                uint32_t w[2];
                if (exact_weight && part > 0) continue;
                load_right(tile.w[part], o + 8 * j, k, w);
                for (int of_x = PARTS - 1 - part; of_x >= 0; of_x--)
                    for (int i = 0; i < 2; i++)
                        multiply_tile<false>(sums[i][j], x[of_x][i], w[0], w[1]);
            }
        }
    }
}

/* Rows [row, row + TILE_ROWS) by features [o, o + TILE_FEATURES), those before `end`. */
DEVICE_FN void linear_tile_block(const op_call &call, int64_t row, int64_t o, int64_t end,
                                 linear_tile &tile)
{
    const tensor &x = call.tensors[LINEAR_X];
    bool exact_weight = call.tensors[LINEAR_WEIGHT].type == DTYPE_BF16;
    float sums[2][4][4] = {};
    for (int64_t k = 0; k < x.shape[1]; k += TILE_DEPTH) {
        __syncthreads();
        linear_fill_tile(call, row, o, end, k, tile);
        __syncthreads();
        linear_multiply_tile(tile, exact_weight, sums);
    }
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 4; j++) {
            for (int c = 0; c < 4; c++) {
                int64_t r = row + warp / 2 * 32 + 16 * i + lane / 4 + c / 2 * 8;
                int64_t f = o + warp % 2 * 32 + 8 * j + lane % 4 * 2 + c % 2;
                if (r < x.shape[0] && f < end) linear_store(call, r, f, sums[i][j][c]);
            }
        }
    }
}
