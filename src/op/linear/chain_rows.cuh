/* The step between two products of a chain: a row's parts are added to the residual, over ranks
 * too, and the row is normalised for the next product. */
#pragma once

#include "op/linear/chain_block.cuh"
#include "op/linear/chain_reduce.cuh"
#include "op/rms_norm/rms_norm.cuh"

/* Where a row comes from and goes to. */
struct chain_row {
    const float *parts; /* the first of them */
    const char *x;      /* of the residual, or of the embedding table */
    float *out;         /* or NULL */
    bool biased;
};

DEVICE_FN chain_row chain_row_of(const chain_rows &c, int64_t row)
{
    int64_t from = c.rows ? c.rows[row] : row;
    chain_row r = {c.parts.data + from * c.parts.n_features, (const char *)c.table, nullptr,
                   chain_is_biased(c.parts)};
    r.x = c.table                      ? r.x + from * c.residual_pitch
          : CHAIN_RANKS && !c.residual ? nullptr
                                       : (const char *)(c.residual + from * c.residual_pitch);
    if (c.out) r.out = c.out + row * c.out_pitch;
    return r;
}

/* Copies the norm's weight to shared memory, while others end the step before. Not to the L1 cache,
 * because each poll of a counter invalidates it. */
DEVICE_FN void chain_bring_weight(const chain_rows &c, char *weight)
{
    const int bytes = c.parts.n_features * (c.weight_type == DTYPE_F32 ? 4 : 2);
    for (int i = 8 * (int)threadIdx.x; i < bytes; i += 8 * CHAIN_WORKERS)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(weight + i)),
                     "l"((const char *)c.weight + i)
                     : "memory");
}

/* Elements [i, i + 4) and [j, j + 4) of a row's parts, added in their order, then of the bias and
 * of x; all loads are in flight together. */
DEVICE_FN void chain_add_parts(const chain_parts &parts, const chain_row &of, int i, int j,
                               float4 (&sum)[2])
{
    const float *from = of.parts, *x = (const float *)of.x;
    const int64_t step = (int64_t)parts.n_rows * parts.n_features;
    float4 part[2][CHAIN_MAX_PARTS], residual[2], bias[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int at = k ? j : i;
        residual[k] =
            CHAIN_RANKS && !x ? make_float4(0, 0, 0, 0) : __ldcg((const float4 *)(x + at));
        bias[k] = chain_bias4(parts, of.biased, at);
#pragma unroll
        for (int r = 0; r < CHAIN_MAX_PARTS; r++)
            part[k][r] = r < parts.n_parts ? __ldcg((const float4 *)(from + r * step + at))
                                           : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        sum[k] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < CHAIN_MAX_PARTS; r++)
            if (r < parts.n_parts) add_to(sum[k], part[k][r]);
        if (of.biased) add_to(sum[k], bias[k]);
        add_to(sum[k], residual[k]);
    }
}

/* Adds 256 elements of a row, parts and x, and stores them in out and in `space`; a lane has fours
 * from i and from i + 128 on. Returns the sum of their squares. Elements after the row are zeros.
 */
DEVICE_FN float chain_rows_add(const chain_rows &c, const chain_row &row, float *space, int i)
{
    float4 sum[2] = {};
    float squares[2] = {};
    const int n = c.parts.n_features, second = i + 128 < n ? i + 128 : i;
    if (c.table && i < n) {
        sum[0] = chain_load4((dtype)c.table_type, row.x, i);
        sum[1] = chain_load4((dtype)c.table_type, row.x, second);
    } else if (i < n) {
        chain_add_parts(c.parts, row, i, second, sum);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float4 &v = sum[k];
        int at = i + k * 128;
        if (at >= n) break;
        if (row.out) *(float4 *)(row.out + at) = v;
        *(float4 *)(space + at) = v;
        squares[k] = norm_squares4(v.x, v.y, v.z, v.w);
    }
    return norm_sum_of_fours(squares[0], squares[1]);
}

/* Adds 256 elements of a row's parts into `space`, and pushes them to the other ranks. */
DEVICE_FN void chain_rows_push(const chain_rows &c, const exchange &e, uint32_t round, int64_t row,
                               const chain_row &of, float *space, int i)
{
    const int n = c.parts.n_features;
    float4 sum[2];
    if (i >= n) return;
    chain_add_parts(c.parts, of, i, i + 128 < n ? i + 128 : i, sum);
    *(float4 *)(space + i) = sum[0];
    if (i + 128 < n) *(float4 *)(space + i + 128) = sum[1];
    chain_push(e, round, row, i, sum);
}

/* Adds what the other ranks have pushed of them, as chain_rows_add() adds parts and x. */
DEVICE_FN float chain_rows_take(const chain_rows &c, const exchange &e, uint32_t round, int64_t row,
                                const chain_row &of, float *space, int i)
{
    const int n = c.parts.n_features;
    float4 sum[2] = {};
    float squares[2] = {};
    if (i < n) {
        sum[0] = *(const float4 *)(space + i);
        if (i + 128 < n) sum[1] = *(const float4 *)(space + i + 128);
        chain_take(e, round, row, i, sum);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float4 &v = sum[k];
        int at = i + k * 128;
        if (at >= n) break;
        if (of.out) *(float4 *)(of.out + at) = v;
        *(float4 *)(space + at) = v;
        squares[k] = norm_squares4(v.x, v.y, v.z, v.w);
    }
    return norm_sum_of_fours(squares[0], squares[1]);
}

/* A row that is summed over ranks: the block pushes all of it before it waits, so that it waits
 * once. */
DEVICE_FN void chain_rows_reduce(const linear_chain &call, const chain_rows &c, int64_t row,
                                 const chain_row &of, float *space, float *cells)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = CHAIN_WORKERS / WARP;
    const int n = c.parts.n_features, first = 256 * warp + 4 * lane, step = 256 * n_warps;
    const uint32_t round = *chain_round(call.ranks, row) + 1;
#pragma unroll 1
    for (int cell = warp, i = first; cell < (n + 255) / 256; cell += n_warps, i += step)
        chain_rows_push(c, call.ranks, round, row, of, space, i);
#pragma unroll 1
    for (int cell = warp, i = first; cell < (n + 255) / 256; cell += n_warps, i += step) {
        float squares = chain_rows_take(c, call.ranks, round, row, of, space, i);
        if (lane == 0) cells[cell] = squares;
    }
    chain_meet(); /* all threads have read the counter */
    if (threadIdx.x == 0) *chain_round(call.ranks, row) = round;
}

/* `space`: shared memory for a row, where each thread keeps its own elements, and after it the sums
 * of squares of each 256 elements, which are added as in op/rms_norm/rms_norm.cuh. `weight`: room
 * for the norm's CHAIN_ROW floats, in the memory of x, which is free between two products. */
DEVICE_FN void chain_rows_step(const linear_chain &call, int s, float *space, char *weight)
{
    const chain_rows &c = call.steps[s].of.rows;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = CHAIN_WORKERS / WARP;
    const int n = c.parts.n_features, first = 256 * warp + 4 * lane, step = 256 * n_warps;
    const int n_cells = (n + 255) / 256;
    float *cells = space + (CHAIN_WIDE ? CHAIN_WIDE_ROW : CHAIN_ROW);
    if (c.weight) chain_bring_weight(c, weight);
    chain_row of = chain_row_of(c, blockIdx.x);
    chain_known(of.parts), chain_known(of.x), chain_known(of.out), chain_known(of.biased);
    chain_wait_all(call, s);
    for (int64_t row = blockIdx.x; row < c.n_rows; row += gridDim.x) {
        if (row > blockIdx.x) of = chain_row_of(c, row);
        if (CHAIN_RANKS && c.reduced) chain_rows_reduce(call, c, row, of, space, cells);
#pragma unroll 1
        for (int cell = warp, i = first; cell < n_cells && !(CHAIN_RANKS && c.reduced);
             cell += n_warps, i += step) {
            float squares = chain_rows_add(c, of, space, i);
            if (lane == 0) cells[cell] = squares;
        }
        if (!c.weight) continue;
        asm volatile("cp.async.wait_all;" ::: "memory");
        chain_meet(); /* sums of squares and weight are complete */
        float scale = norm_scale(warp_sum(lane < n_cells ? cells[lane] : 0.0f), n, c.eps);
        if (row + gridDim.x < c.n_rows) chain_meet(); /* and no longer read */
        for (int cell = warp, i = first; cell < n_cells; cell += n_warps, i += step)
#pragma unroll
            for (int at = i; at < i + 256 && at < n; at += 128) {
                float4 f = chain_load4((dtype)c.weight_type, weight, at);
                chain_narrow4(c.narrowed + row * n + at,
                              norm_apply4(*(const float4 *)(space + at), scale, f));
            }
    }
    /* Copies will write x there again. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
