/* linear for up to eight rows of x on the tensor cores, bound by reading the weight.
 *
 * A tile of 16 features is one operand: as stored or, of quantised weights, the quants as whole
 * numbers in BF16, whose sums are multiplied by their scale in float32. The rows of x are the eight
 * columns of the other operand, in three parts of 16 bits that hold all 24 bits of a float. A warp
 * takes every 16th step of 128 columns and copies it to shared memory some steps ahead; the first
 * steps come while the kernels before still run. The warps' sums of a tile are added in the order
 * of the warps, so a row's result depends neither on the number of rows nor on how features were
 * cut.
 */
#pragma once

#include "op/device.cuh"
#include "op/linear/linear_eight.h"
#include "op/silu_and_mul/silu_and_mul.cuh"
#include "op/linear/eight_weights.cuh"
#include "op/linear/eight_x.cuh"

/* A step's weights times x: rows g and g + 8 of the tile for rows 2 t and 2 t + 1 of x. `blocks`:
 * the step's blocks; WHOLE: it has all of them, whose chains then overlap. */
template <dtype T, bool WHOLE>
DEVICE_FN void eight_products(const eight_weights<T> &w, const eight_x<T> &x, int blocks, float *r)
{
    typedef eight_weights<T> weights;
    float c[EIGHT_PARTS][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        r[i] = 0;
#pragma unroll
    for (int j = 0; j < EIGHT_STEP_BLOCKS; j++) {
        if (!WHOLE && j >= blocks) break;
        uint32_t m[4];
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            w.fragment(j, h, m);
            if (weights::PLAIN) {
#pragma unroll
                for (int part = 0; part < EIGHT_PARTS; part++)
                    multiply_tile<weights::HALF>(c[part], m, x.v[j][h][part][0],
                                                 x.v[j][h][part][1]);
                continue;
            }
            x.multiply(sum, m, j, h);
            if (!weights::HALVES && h == 0) continue;
            w.scale(j, h, sum, x.sums[weights::MINIMUM ? j : 0], r);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i] = 0;
        }
    }
    if (weights::PLAIN)
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = fmaf(c[0][i], x.part_unit(0),
                        fmaf(c[1][i], x.part_unit(1), c[2][i] * x.part_unit(2)));
}

/* The sum of what the warps have of a row of a tile and a row of x, in the order of the warps. */
DEVICE_FN float eight_sum(const float *of, int warp_sums, int n_steps)
{
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < LINEAR_EIGHT_WARPS; warp++)
        if (warp < n_steps) sum += of[warp * warp_sums];
    return sum;
}

/* Stores the sums of the tiles from `group` on in out, in the order in which they are in shared
 * memory: four a lane, as eight_products() stored them. */
DEVICE_FN void eight_leave(const linear_eight &a, const float *sums, int tiles, int group, int last,
                           int first_row, int n_steps)
{
    int n = min(tiles, last - group) * EIGHT_TILE_SUMS, warp_sums = tiles * EIGHT_TILE_SUMS;
    for (int i = threadIdx.x; i < n; i += EIGHT_THREADS) {
        int lane = i / 4 % WARP, in = lane / 4, tile = group + i / EIGHT_TILE_SUMS;
        int row = first_row + lane % 4 * 2 + i % 2;
        bool later = i % 4 >= 2; /* the lower rows of the tile */
        if (a.activates && later) continue;
        if (later) in += LINEAR_EIGHT_FEATURES / 2;
        int o = a.begin + tile * eight_outputs(a) + in;
        if (o < a.first || o >= a.end || row >= a.n_rows) continue;
        float sum = eight_sum(sums + i, warp_sums, n_steps);
        if (a.activates) sum = silu(sum) * eight_sum(sums + i + 2, warp_sums, n_steps);
        if (a.bias) sum += device_load((dtype)a.bias_type, a.bias, o);
        if (a.residual) sum += a.residual[row * a.residual_pitch + o];
        a.out[row * a.out_pitch + o] = sum;
    }
}

/* Block x of the grid has a share of the tiles, for the eight rows of x of block y. */
template <dtype T, int PITCH, int STAGES, int TILES>
DEVICE_FN void linear_eight_block(const linear_eight &a)
{
    typedef eight_pieces<T> pieces;
    extern __shared__ __align__(16) char eight_shared[];
    const int stage_bytes = LINEAR_EIGHT_FEATURES * PITCH, warp_sums = TILES * EIGHT_TILE_SUMS;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4;
    int n_steps = (a.n_columns + LINEAR_EIGHT_COLUMNS - 1) / LINEAR_EIGHT_COLUMNS;
    int first = (int)((int64_t)a.tiles * blockIdx.x / gridDim.x);
    int last = (int)((int64_t)a.tiles * (blockIdx.x + 1) / gridDim.x);
    int first_row = blockIdx.y * LINEAR_EIGHT_ROWS, stage = 0;
    float *sums = (float *)eight_shared;
    const char *ring =
        eight_shared + LINEAR_EIGHT_WARPS * warp_sums * sizeof(float) + warp * STAGES * stage_bytes;
    uint32_t to = (uint32_t)__cvta_generic_to_shared(ring) + lane / pieces::LANES * PITCH +
                  lane % pieces::LANES * 16;
    eight_place<T, TILES> ahead = {first, warp};
    eight_x<T> x;

    auto fetch = [&]() {
        if (warp < n_steps && ahead.group < last) {
            ahead.template fetch<PITCH>(a, to + stage * stage_bytes);
            ahead.advance(a, n_steps, last);
        }
        copies_commit();
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    };

    device_let_next_begin();
    ahead.find(a, last);
    for (int i = 0; i < STAGES; i++)
        fetch();
    device_wait_for_last();
#pragma unroll 1
    for (int group = first; group < last; group += TILES) {
        int n_tiles = min(TILES, last - group);
#pragma unroll 1
        for (int step = warp; step < n_steps; step += LINEAR_EIGHT_WARPS) {
            int blocks = (a.n_columns - step * LINEAR_EIGHT_COLUMNS) / LINEAR_EIGHT_BLOCK;
            if (group == first || n_steps > LINEAR_EIGHT_WARPS) x.load(a, first_row, step);
            const char *rows = ring + g * PITCH + pieces::shift(eight_row<T>(a, a.begin + g, step));
            float4 *sum = (float4 *)(sums + warp * warp_sums) + lane;
#pragma unroll 1
            for (int tile = 0; tile < n_tiles; tile++) {
                const char *at = rows + stage * stage_bytes;
                eight_weights<T> w;
                float r[4];
                copies_arrived<STAGES - 1>();
                __syncwarp();
                eight_load<T, PITCH>(a, w, at, step);
                __syncwarp();
                fetch();
                if (blocks >= EIGHT_STEP_BLOCKS)
                    eight_products<T, true>(w, x, blocks, r);
                else
                    eight_products<T, false>(w, x, blocks, r);
                float4 before = step == warp ? make_float4(0, 0, 0, 0) : *sum;
                *sum =
                    make_float4(before.x + r[0], before.y + r[1], before.z + r[2], before.w + r[3]);
                sum += EIGHT_TILE_SUMS / 4;
            }
        }
        __syncthreads();
        eight_leave(a, sums, TILES, group, last, first_row, n_steps);
        __syncthreads();
    }
}
