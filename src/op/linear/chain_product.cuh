/* A product of a chain: its worker threads multiply, and leave sums of features, silu(gate) * up,
 * or the likeliest features. */
#pragma once

#include "op/linear/chain_fetch.cuh"
#include "op/linear/chain_likeliest.cuh"
#include "op/linear/chain_packed.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"

/* Only the first warpgroup multiplies a low tile; with both, reading shared memory would take
 * longer. The groups meet before the second one reads a stage again. With few columns a stage is
 * released while the tensor cores multiply the next one, so that they never pause. */
template <int COLUMNS, bool LOW>
DEVICE_FN void chain_multiply(const chain_item &item, chain_ring &weights, chain_ring &xs,
                              stream_sums<COLUMNS> &sums)
{
    const int DEPTHS = LOW ? CHAIN_X_DEPTHS : 1, X_STEP = CHAIN_X_BYTES(COLUMNS) / CHAIN_X_DEPTHS;
    const int WEIGHT_STEP = CHAIN_WEIGHT_BYTES / DEPTHS, READERS = CHAIN_READERS / (LOW ? 1 : 2);
    const int LATER = COLUMNS == 16;
    const int group = threadIdx.x / 128;
    bool one = threadIdx.x % 128 == 0, ended = false;
    if (LOW && group > 0) {
        chain_ring_skip(weights, item.n / DEPTHS);
        chain_ring_skip(xs, item.n / DEPTHS);
        return;
    }
    chain_ring done = weights, x_done = xs; /* the last stages whose products are under way */
    for (int i = 0; i < item.n; i += DEPTHS) {
        int depth = i % CHAIN_X_DEPTHS, next = depth + DEPTHS;
        bool ends = next == CHAIN_X_DEPTHS || i + DEPTHS == item.n;
        uint64_t weight =
            wgmma_operand(chain_uniform(chain_stage(weights) + group * CHAIN_WEIGHT_BYTES / 2), 64);
        uint64_t x = wgmma_operand(chain_uniform(chain_stage(xs) + depth * X_STEP), 64);
        chain_ring_wait(weights);
        if (depth == 0) chain_ring_wait(xs);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < DEPTHS * LINEAR_STREAM_DEPTH / 16; k++)
            wgmma_scores(__nv_bfloat16(), sums.of,
                         wgmma_further(weight, k / 4 * WEIGHT_STEP + k % 4 * 32),
                         wgmma_further(x, k / 4 * X_STEP + k % 4 * 32), i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<LATER>();
        if (one && (!LATER || i > 0)) {
            chain_ring_give(LATER ? done : weights, READERS);
            if (LATER ? ended : ends) chain_ring_give(LATER ? x_done : xs, READERS);
        }
        done = weights, x_done = xs, ended = ends;
        chain_ring_next(weights);
        if (ends) chain_ring_next(xs);
    }
    if (LATER) {
        wgmma_wait<0>();
        if (one) chain_ring_give(done, READERS), chain_ring_give(x_done, READERS);
    }
    wgmma_hold(sums.of);
}

/* gate and up are in the same thread: stores rows [first, first + CHAIN_TURN_ROWS) of x in BF16. */
template <int COLUMNS>
DEVICE_FN void chain_leave_activated(const chain_product &p, const chain_item &item,
                                     const stream_sums<COLUMNS> &sums, float *space)
{
    const int PITCH = LINEAR_STREAM_ROWS / 2 + 8;
    int lane = threadIdx.x % WARP, eight = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    uint16_t *rows = (uint16_t *)space;
    chain_meet(); /* no thread reads the space any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            rows[(q * 8 + t * 2 + j) * PITCH + eight * 8 + g] =
                (uint16_t)chain_narrow2(silu(sums.of[q][j]) * sums.of[q][2 + j], 0);
    chain_meet();                     /* rows are complete */
    const int eights = p.weight_step; /* of features in a tile */
    int feature = (item.tile * eights + (int)threadIdx.x % 8) * 8;
    if ((int)threadIdx.x % 8 >= eights) return;
    for (int row = (int)threadIdx.x / 8; row < p.n_rows; row += CHAIN_WORKERS / 8)
        if (feature < p.n_features)
            *(uint4 *)(p.narrowed + (int64_t)row * p.n_features + feature) =
                *(const uint4 *)(rows + row * PITCH + threadIdx.x % 8 * 8);
}

/* A thread has rows g and g + 8 of 16 rows of the tile, which has HIGH rows, times rows 8 q + 2 t
 * and the next of x; stores them as whole rows. */
template <int COLUMNS, int HIGH>
DEVICE_FN void chain_leave(const chain_product &p, const chain_item &item,
                           const stream_sums<COLUMNS> &sums, float *space)
{
    const int ROWS = CHAIN_TURN_ROWS(HIGH), PITCH = CHAIN_TURN_PITCH(HIGH), FOURS = HIGH / 4;
    int lane = threadIdx.x % WARP, sixteen = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int four = threadIdx.x % FOURS * 4, feature = item.tile * HIGH + four;
    float *to = p.out + (int64_t)item.rank * p.n_rows * p.out_pitch + feature;
#pragma unroll
    for (int first = 0; first < COLUMNS; first += ROWS) {
        chain_meet(); /* no thread reads the space any more */
#pragma unroll
        for (int q = 0; q < ROWS / 8 && q < COLUMNS / 8; q++)
#pragma unroll
            for (int j = 0; j < 4 && sixteen < HIGH / 16; j++)
                space[(q * 8 + t * 2 + j % 2) * PITCH + sixteen * 16 + g + j / 2 * 8] =
                    sums.of[first / 8 + q][j];
        chain_meet(); /* rows are complete */
        for (int r = threadIdx.x / FOURS; r < ROWS && first + r < p.n_rows;
             r += CHAIN_WORKERS / FOURS)
            if (feature < p.n_features)
                *(float4 *)(to + (first + r) * p.out_pitch) =
                    *(const float4 *)(space + r * PITCH + four);
    }
}

/* The likeliest of the features in a thread's sums: two of each tile. */
template <int COLUMNS>
DEVICE_FN void chain_likeliest_step(const linear_chain &call, const chain_product &p,
                                    chain_ring &weights, chain_ring &xs, float *space)
{
    likeliest_best<COLUMNS> best;
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
        best.feature[q][0] = best.feature[q][1] = -1;
    for (int i = blockIdx.x; i < p.n_tiles; i += gridDim.x) {
        chain_item item = chain_item_of(p, i);
        stream_sums<COLUMNS> sums = {};
        if (CHAIN_PACKED)
            packed_multiply<COLUMNS>(p, item.tile, item.n, weights, xs, sums);
        else
            chain_multiply<COLUMNS, false>(item, weights, xs, sums);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            int row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + part * 8;
            int feature = item.tile * p.weight_step + row;
            if (row < p.weight_step && feature < p.n_features)
                likeliest_take<COLUMNS>(best, sums, part, feature);
        }
    }
    likeliest_tell<COLUMNS>(call, best, (uint64_t *)space);
}

template <int COLUMNS>
DEVICE_FN void chain_product_step(const chain_product &p, chain_ring &weights, chain_ring &xs,
                                  float *space)
{
    for (int i = blockIdx.x; i < p.n_tiles * p.ranks; i += gridDim.x) {
        chain_item item = chain_item_of(p, i);
        /* Initialised here: else their registers would be occupied in every step. */
        stream_sums<COLUMNS> sums = {};
        if (CHAIN_PACKED) packed_multiply<COLUMNS>(p, item.tile, item.n, weights, xs, sums);
        if (p.low && p.end != CHAIN_SILU) { /* whose low tiles are packed */
            if (!CHAIN_PACKED) chain_multiply<COLUMNS, true>(item, weights, xs, sums);
            chain_leave<COLUMNS, LINEAR_STREAM_LOW_ROWS>(p, item, sums, space);
            continue;
        }
        if (!CHAIN_PACKED) chain_multiply<COLUMNS, false>(item, weights, xs, sums);
        if (p.end == CHAIN_SILU)
            chain_leave_activated<COLUMNS>(p, item, sums, space);
        else
            chain_leave<COLUMNS, LINEAR_STREAM_ROWS>(p, item, sums, space);
    }
}
