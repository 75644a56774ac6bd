/* linear_experts for many tokens: products of tiles on the tensor cores, in BF16.
 *
 * Choices are grouped by expert, and a block multiplies a tile of an expert's choices with 128 rows
 * of its weights, 64 columns at a time, which three stages of shared memory hold. Rows of x are
 * gathered by their choices. Weights in BF16 are copied; others are decoded by the threads, while
 * the tensor cores multiply the stage before. Gate and up alternate by eight rows, so that a thread
 * has both of a feature. Rows of 64 columns are 128 bytes, whose 16-byte pieces are permuted by the
 * row, so that ldmatrix has no bank conflicts.
 */
#pragma once

#include "op/device.cuh"
#include "op/linear_experts/activate.cuh"
#include "op/linear_experts/experts_tiles.h"
#include "op/linear_experts/tile_decode.cuh"
#include "op/tensor_core.cuh"
#include "tensor/decode_all.cuh"

enum {
    TILE_PIECES = EXPERTS_TILE_DEPTH / 8, /* of 16 bytes, in a row of a stage */
    TILE_ROW_BYTES = EXPERTS_TILE_DEPTH * 2,
    TILE_WEIGHT_PIECES = EXPERTS_TILE_FEATURES * TILE_PIECES / EXPERTS_TILE_THREADS,
};

/* Warps: WARPS_M by WARPS_N of them, each with M16 x N8 products of 16 by 8. */
template <int M> struct experts_shape {
    enum {
        WARPS_M = M == 16 ? 1 : 2,
        WARPS_N = EXPERTS_TILE_THREADS / WARP / WARPS_M,
        M16 = M / WARPS_M / 16,
        N = EXPERTS_TILE_FEATURES / WARPS_N,
        N8 = N / 8,
    };
};

/* What a block works on. */
struct experts_tile {
    int expert, first, count; /* choices [first, first + count) of those by expert */
    int feature;              /* the first */
};

/* ---- stages --------------------------------------------------------------------------------- */

DEVICE_FN uint32_t tile_address(uint32_t rows, int row, int piece)
{
    return rows + (uint32_t)(row * TILE_ROW_BYTES + (piece ^ (row & 7)) * 16);
}

/* Rows of x at columns from k on; `rows`: of x for each row of the tile. */
template <int M>
DEVICE_FN void tile_copy_x(const experts_tiles &a, const int32_t *rows, int count, int k,
                           uint32_t to)
{
    for (int i = (int)threadIdx.x; i < M * TILE_PIECES; i += EXPERTS_TILE_THREADS) {
        const int r = i / TILE_PIECES, piece = i % TILE_PIECES, column = k + 8 * piece;
        const bool there = r < count && column < a.n_columns;
        copy_16_or_zeros(tile_address(to, r, piece),
                         there ? a.x + rows[r] * a.x_pitch + column : a.x, there);
    }
}

/* A row of the tile's weights; NULL: it has none. */
template <bool UP>
DEVICE_FN const char *tile_weight(const experts_tiles &a, const experts_tile &tile, int n,
                                  int *type)
{
    const int m = UP ? n % 16 / 8 : 0;
    const int64_t o = tile.feature + (UP ? n / 16 * 8 + n % 8 : n);
    *type = m ? a.type[1] : a.type[0];
    if (o >= a.n_features) return NULL;
    return m ? a.weight[1] + tile.expert * a.expert_pitch[1] + o * a.row_pitch[1]
             : a.weight[0] + tile.expert * a.expert_pitch[0] + o * a.row_pitch[0];
}

/* Of any type; a function, because its code is long. */
__device__ static __noinline__ void tile_decode_any(dtype type, const char *row, int column, int n,
                                                    float *out)
{
    decode8_all_of<DTYPE_COUNT>(type, row, column, n, out);
}

/* A thread's pieces of a stage of weights in BF16, and where they go. */
struct tile_pieces {
    uint4 of[TILE_WEIGHT_PIECES];
    int n[TILE_WEIGHT_PIECES], at[TILE_WEIGHT_PIECES]; /* row of weights, piece of the row */
};

template <dtype T, bool UP>
DEVICE_FN void tile_decode(const experts_tiles &a, const experts_tile &tile, int k,
                           tile_pieces &out)
{
    int type;
    if constexpr (tile_half<T>::HAS) {
        const int n = (int)threadIdx.x / 2;
        const char *row = tile_weight<UP>(a, tile, n, &type);
        const int half = (int)threadIdx.x % 2;
        /* Blocks of 32 may end in the middle of a stage. */
        const bool there = row && k + (T == DTYPE_MXFP4 ? 32 * half : 0) < a.n_columns;
        tile_half<T>::decode(there ? row : a.weight[0], there ? k : 0, half, out.of, out.at);
#pragma unroll
        for (int i = 0; i < TILE_WEIGHT_PIECES; i++) {
            out.n[i] = n;
            if (!there) out.of[i] = make_uint4(0, 0, 0, 0);
        }
    } else {
#pragma unroll
        for (int i = 0; i < TILE_WEIGHT_PIECES; i++) {
            const int at = i * EXPERTS_TILE_THREADS + (int)threadIdx.x;
            const int column = k + 8 * (at % TILE_PIECES);
            const char *row = tile_weight<UP>(a, tile, at / TILE_PIECES, &type);
            float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            if (row && column < a.n_columns)
                tile_decode_any((dtype)type, row, column, a.n_columns, v);
            out.of[i] = tile_piece(v);
            out.n[i] = at / TILE_PIECES;
            out.at[i] = at % TILE_PIECES;
        }
    }
}

DEVICE_FN void tile_store(const tile_pieces &pieces, uint32_t to)
{
#pragma unroll
    for (int i = 0; i < TILE_WEIGHT_PIECES; i++) {
        const uint4 &of = pieces.of[i];
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                         tile_address(to, pieces.n[i], pieces.at[i])),
                     "r"(of.x), "r"(of.y), "r"(of.z), "r"(of.w)
                     : "memory");
    }
}

/* The same of weights in BF16. */
template <bool UP>
DEVICE_FN void tile_copy_weights(const experts_tiles &a, const experts_tile &tile, int k,
                                 uint32_t to)
{
#pragma unroll
    for (int i = 0; i < TILE_WEIGHT_PIECES; i++) {
        const int at = i * EXPERTS_TILE_THREADS + (int)threadIdx.x;
        const int n = at / TILE_PIECES, piece = at % TILE_PIECES, column = k + 8 * piece;
        int type;
        const char *row = tile_weight<UP>(a, tile, n, &type);
        const bool there = row && column < a.n_columns;
        copy_16_or_zeros(tile_address(to, n, piece),
                         there ? row + (int64_t)column * 2 : (const char *)a.x, there);
    }
}

/* ---- products ------------------------------------------------------------------------------- */

/* A warp's products of a stage. */
template <int M>
DEVICE_FN void tile_products(uint32_t x, uint32_t weights,
                             float (&c)[experts_shape<M>::M16][experts_shape<M>::N8][4])
{
    typedef experts_shape<M> shape;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int row = warp / shape::WARPS_N * (shape::M16 * 16) + lane % 16;
    const int n = warp % shape::WARPS_N * shape::N + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < EXPERTS_TILE_DEPTH / 16; k++) {
        uint32_t left[shape::M16][4];
#pragma unroll
        for (int i = 0; i < shape::M16; i++)
            load_matrices(left[i], tile_address(x, row + 16 * i, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < shape::N8; j += 2) {
            uint32_t right[4];
            load_matrices(right, tile_address(weights, n + 8 * j, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < shape::M16; i++) {
                multiply_tile<false>(c[i][j], left[i], right[0], right[1]);
                multiply_tile<false>(c[i][j + 1], left[i], right[2], right[3]);
            }
        }
    }
}

/* ---- outputs -------------------------------------------------------------------------------- */

DEVICE_FN float tile_bias(const experts_tiles &a, int m, int64_t expert, int o)
{
    const char *bias = (const char *)(m ? a.bias[1] : a.bias[0]);
    if (!bias || o >= a.n_features) return 0;
    return device_load((dtype)(m ? a.bias_type[1] : a.bias_type[0]),
                       bias + expert * (m ? a.bias_pitch[1] : a.bias_pitch[0]), o);
}

/* Features o and o + 1 of a choice. */
DEVICE_FN void tile_store_pair(const experts_tiles &a, int choice, int o, float low, float high)
{
    const int64_t at = choice / a.top_k * a.out_token + choice % a.top_k * a.out_choice + o;
    if (o >= a.n_features) return;
    if (a.narrow) { /* the row has room for a pair */
        *(uint32_t *)((uint16_t *)a.out + at) = device_pack2(DTYPE_BF16, low, high);
        return;
    }
    ((float *)a.out)[at] = low;
    if (o + 1 < a.n_features) ((float *)a.out)[at + 1] = high;
}

/* `choices`: of the tile's rows. */
template <int M>
DEVICE_FN void tile_leave_up(const experts_tiles &a, const experts_tile &tile,
                             const int32_t *choices,
                             const float (&c)[experts_shape<M>::M16][experts_shape<M>::N8][4])
{
    typedef experts_shape<M> shape;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int j = 0; j < shape::N8; j += 2) {
        const int o = tile.feature + warp % shape::WARPS_N * (shape::N / 2) + j * 4 + lane % 4 * 2;
        const float gate[2] = {tile_bias(a, 0, tile.expert, o),
                               tile_bias(a, 0, tile.expert, o + 1)};
        const float up[2] = {tile_bias(a, 1, tile.expert, o), tile_bias(a, 1, tile.expert, o + 1)};
#pragma unroll
        for (int i = 0; i < 2 * shape::M16; i++) {
            const int row = warp / shape::WARPS_N * (shape::M16 * 16) + 8 * i + lane / 4;
            const float *g = &c[i / 2][j][i % 2 * 2], *u = &c[i / 2][j + 1][i % 2 * 2];
            if (row >= tile.count) continue;
            tile_store_pair(
                a, choices[row], o,
                experts_activate(g[0] + gate[0], u[0] + up[0], a.alpha, a.limit, a.added),
                experts_activate(g[1] + gate[1], u[1] + up[1], a.alpha, a.limit, a.added));
        }
    }
}

template <int M>
DEVICE_FN void tile_leave_down(const experts_tiles &a, const experts_tile &tile,
                               const int32_t *choices,
                               const float (&c)[experts_shape<M>::M16][experts_shape<M>::N8][4])
{
    typedef experts_shape<M> shape;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < 2 * shape::M16; i++) {
        const int row = warp / shape::WARPS_N * (shape::M16 * 16) + 8 * i + lane / 4;
        if (row >= tile.count) continue;
        const int choice = choices[row];
        const float share =
            a.shares ? a.shares[choice / a.top_k * a.shares_pitch + choice % a.top_k] : 1.0f;
#pragma unroll
        for (int j = 0; j < shape::N8; j++) {
            const int o = tile.feature + warp % shape::WARPS_N * shape::N + j * 8 + lane % 4 * 2;
            const float *sum = &c[i / 2][j][i % 2 * 2];
            tile_store_pair(a, choice, o, share * (sum[0] + tile_bias(a, 0, tile.expert, o)),
                            share * (sum[1] + tile_bias(a, 0, tile.expert, o + 1)));
        }
    }
}

/* ---- a block -------------------------------------------------------------------------------- */

/* Block (x, y): tile y of the choices, and as many features as a tile has, from the x-th on. */
template <int M, dtype T, bool UP> DEVICE_FN void experts_tile_block(const experts_tiles &a)
{
    typedef experts_shape<M> shape;
    extern __shared__ __align__(128) char experts_shared[];
    __shared__ int32_t choices[M], rows[M];
    const int stage_bytes = (M + EXPERTS_TILE_FEATURES) * TILE_ROW_BYTES;
    const int n_steps = (a.n_columns + EXPERTS_TILE_DEPTH - 1) / EXPERTS_TILE_DEPTH;
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(experts_shared);
    const bool copies = T == DTYPE_BF16;
    float c[shape::M16][shape::N8][4] = {};
    tile_pieces pieces = {};

    device_take_turn();
    if ((int)blockIdx.y >= *a.groups.n_tiles) return;
    experts_tile tile = {.expert = a.groups.tiles[2 * blockIdx.y],
                         .first = a.groups.tiles[2 * blockIdx.y + 1]};
    tile.count = min(M, a.groups.first[tile.expert + 1] - tile.first);
    tile.feature = (int)blockIdx.x * (UP ? EXPERTS_TILE_FEATURES / 2 : EXPERTS_TILE_FEATURES);
    for (int r = (int)threadIdx.x; r < tile.count; r += EXPERTS_TILE_THREADS) {
        choices[r] = a.groups.choices[tile.first + r];
        rows[r] = a.x_rows == 1 ? choices[r] / a.top_k : choices[r];
    }
    __syncthreads();

    auto stage = [&](int step) {
        return shared + (uint32_t)(step % EXPERTS_TILE_STAGES * stage_bytes);
    };
    auto copy = [&](int step) {
        if (step < n_steps) {
            tile_copy_x<M>(a, rows, tile.count, step * EXPERTS_TILE_DEPTH, stage(step));
            if (copies)
                tile_copy_weights<UP>(a, tile, step * EXPERTS_TILE_DEPTH,
                                      stage(step) + M * TILE_ROW_BYTES);
        }
        copies_commit();
    };

    for (int step = 0; step < EXPERTS_TILE_STAGES - 1; step++) {
        copy(step);
        if (copies || step >= n_steps) continue;
        tile_decode<T, UP>(a, tile, step * EXPERTS_TILE_DEPTH, pieces);
        tile_store(pieces, stage(step) + M * TILE_ROW_BYTES);
    }
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        const int next = step + EXPERTS_TILE_STAGES - 1;
        copies_arrived<EXPERTS_TILE_STAGES - 2>();
        __syncthreads(); /* the stage has come, and the one before it has been multiplied */
        copy(next);
        if (!copies && next < n_steps)
            tile_decode<T, UP>(a, tile, next * EXPERTS_TILE_DEPTH, pieces);
        tile_products<M>(stage(step), stage(step) + M * TILE_ROW_BYTES, c);
        if (!copies && next < n_steps) tile_store(pieces, stage(next) + M * TILE_ROW_BYTES);
    }
    if constexpr (UP)
        tile_leave_up<M>(a, tile, choices, c);
    else
        tile_leave_down<M>(a, tile, choices, c);
}
