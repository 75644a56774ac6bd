/* Products of many rows of x with matrices in FP8 (linear_f8.h).
 *
 * Both sides are FP8, in which the tensor cores multiply at twice the rate of BF16. They add 128
 * columns of products at a time; those sums, times the scales of x and of the weight, are added in
 * float32 registers. Tiles, clusters and the ring are those of linear_wide.cuh. While one warpgroup
 * scales its sums the other one multiplies.
 */
#pragma once

#include "op/barrier.cuh"
#include "op/linear/linear_f8.cuh"
#include "op/linear/linear_stream.cuh"
#include "op/linear/linear_wide.cuh"

/* ---- fetching -------------------------------------------------------------------------------- */

struct f8_block {
    uint32_t stages, scales, out, full, empty, turn;
    longlong2 *places; /* of rows, in the caches of k and of v */
    int rank, cluster, n_clusters;
};

struct f8_ring {
    int stage;
    uint32_t parity;
};
template <int PANELS> DEVICE_FN void f8_next(f8_ring &ring)
{
    if (++ring.stage == F8_WIDE_STAGES(PANELS)) ring.stage = 0, ring.parity ^= 1;
}

/* Copies numbers of a panel, from row `row` on, to the same place in both blocks; each block's own
 * mbarrier counts the bytes. */
DEVICE_FN void f8_fetch_for_both(uint32_t to, const char *map, int column, int row, int panel,
                                 uint32_t barrier, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(panel), "r"(barrier), "h"((uint16_t)3), "l"(policy)
        : "memory");
}

DEVICE_FN int f8_row(const linear_f8_wide &call, const f8_block &b, int tile)
{
    return (tile % call.row_tiles * F8_WIDE_BLOCKS + b.rank) * F8_WIDE_ROWS;
}
DEVICE_FN int f8_panel(const linear_f8_wide &call, int tile)
{
    return tile / call.row_tiles * call.panel_step;
}

/* One thread. Each block of the cluster copies half of the panels' rows for both. */
template <int PANELS> DEVICE_FN void f8_fetch_all(const linear_f8_wide &call, const f8_block &b)
{
    const int share = PANELS * F8_ROWS / F8_WIDE_BLOCKS, own = PANELS == 1 ? b.rank * share : 0;
    f8_ring ring = {0, 0};
    /* Weights stay in the L2 cache for a short time only; x is read for many tiles. */
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    for (int tile = b.cluster; tile < call.tiles; tile += b.n_clusters) {
        const int row = f8_row(call, b, tile), panel = f8_panel(call, tile);
        const char *first =
            call.weight + panel * call.panel_bytes + (int64_t)call.n_steps * F8_COLUMNS * F8_ROWS;
        const bool alone = panel + call.second >= call.n_panels;
        const char *second = alone ? first : first + call.second * call.panel_bytes;
        for (int step = 0; step < call.n_steps; step++, f8_next<PANELS>(ring)) {
            const uint32_t to = b.stages + ring.stage * F8_WIDE_STAGE(PANELS);
            const uint32_t full = b.full + 8 * ring.stage;
            const uint32_t scales = b.scales + ring.stage * F8_WIDE_SCALES(PANELS);
            barrier_wait(b.empty + 8 * ring.stage, ring.parity ^ 1);
            barrier_expect(full, F8_WIDE_STAGE(PANELS) + F8_WIDE_SCALES(PANELS));
            stream_copy_2d(to, call.x_map, step * (F8_COLUMNS / 2), row, full);
            f8_fetch_for_both(to + (F8_WIDE_ROWS + b.rank * share) * F8_COLUMNS, call.weight_map,
                              step * (F8_COLUMNS / 2), own,
                              PANELS == 2 ? panel + b.rank * call.second : panel, full, policy);
            f8_copy(scales, call.x_scales + step * call.x_pitch + row, F8_SCALES, full);
            f8_copy(scales + F8_SCALES, first + step * F8_SCALES, F8_SCALES, full);
            if (PANELS == 2)
                f8_copy(scales + 2 * F8_SCALES, second + step * F8_SCALES, F8_SCALES, full);
        }
    }
}

/* ---- multiplying ----------------------------------------------------------------------------- */

/* A warpgroup's sums of a tile: the first panel's features, then the second's, in wgmma's order. */
template <int PANELS> using f8_sums = float[PANELS * F8_ROWS / 8][4];

/* Adds the sums of 128 columns of a panel, times their scales. */
DEVICE_FN void f8_add(const float (&part)[16][4], float low, float high, uint32_t scales,
                      float (*sums)[4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 s = f8_load2(scales + i * 32);
        sums[i][0] = fmaf(part[i][0], low * s.x, sums[i][0]);
        sums[i][1] = fmaf(part[i][1], low * s.y, sums[i][1]);
        sums[i][2] = fmaf(part[i][2], high * s.x, sums[i][2]);
        sums[i][3] = fmaf(part[i][3], high * s.y, sums[i][3]);
    }
}

/* `turn`: the mbarrier at which one thread of the first warpgroup lets the second one begin, just
 * before its own product ends; or 0. */
DEVICE_FN void f8_multiply_panel(float (&part)[16][4], uint64_t x, uint64_t weight, uint32_t turn)
{
    wgmma_hold(part);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < F8_COLUMNS / 32; k++) {
        f8_multiply(part, x + 2 * k, weight + 2 * k, k > 0);
        wgmma_commit();
    }
    wgmma_wait<1>();
    if (turn) barrier_arrive(turn);
    wgmma_wait<0>();
    wgmma_hold(part);
}

/* The warp has read the stage: signals both blocks. */
DEVICE_FN void f8_give(const f8_block &b, int stage)
{
    __syncwarp();
    if (threadIdx.x % WARP < F8_WIDE_BLOCKS)
        wide_arrive(b.empty + 8 * stage, (int)threadIdx.x % WARP);
}

/* The tensor cores serve both warpgroups in turn, so two that begin together also end together, and
 * then both scale while nothing multiplies. The second one therefore begins each step when the
 * first one's first product of the step ends. */
template <int PANELS>
DEVICE_FN void f8_multiply_tile(const linear_f8_wide &call, const f8_block &b, int group,
                                f8_ring &ring, f8_sums<PANELS> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const int row = group * 64 + thread / 32 * 16 + g;
    float part[16][4];
#pragma unroll
    for (int i = 0; i < PANELS * 16; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        part[i][0] = part[i][1] = part[i][2] = part[i][3] = 0;
    for (int step = 0; step < call.n_steps; step++, f8_next<PANELS>(ring)) {
        const uint32_t at = b.stages + ring.stage * F8_WIDE_STAGE(PANELS);
        const uint32_t scales = b.scales + ring.stage * F8_WIDE_SCALES(PANELS);
        const uint64_t x = wgmma_operand(at + group * 64 * F8_COLUMNS, 64);
        const uint32_t turn = b.turn + 8 * ring.stage;
        barrier_wait(b.full + 8 * ring.stage, ring.parity);
        if (group == 1) barrier_wait(turn, ring.parity);
        const float low = f8_load(scales + row * 4), high = f8_load(scales + row * 4 + 32);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            const uint32_t panel = at + (F8_WIDE_ROWS + p * F8_ROWS) * F8_COLUMNS;
            f8_multiply_panel(part, x, wgmma_operand(panel, F8_ROWS),
                              p == 0 && group == 0 && thread == 0 ? turn : 0);
            f8_add(part, low, high, scales + (1 + p) * F8_SCALES + t * 8, sums + p * 16);
        }
        f8_give(b, ring.stage);
    }
}

/* ---- a block --------------------------------------------------------------------------------- */

/* `end(block, group, tile, sums)`: the epilogue of a tile. */
template <int PANELS, typename END>
DEVICE_FN void linear_f8_run(const linear_f8_wide &call, char *shared, const END &end)
{
    constexpr int STAGES = F8_WIDE_STAGES(PANELS);
    f8_block b;
    b.stages = (uint32_t)__cvta_generic_to_shared(shared);
    b.scales = b.stages + STAGES * F8_WIDE_STAGE(PANELS);
    b.out = b.scales + STAGES * F8_WIDE_SCALES(PANELS);
    b.places = (longlong2 *)(shared + (b.out - b.stages) + F8_WIDE_OUT);
    b.full = b.out + F8_WIDE_OUT + F8_WIDE_PLACES;
    b.empty = b.full + STAGES * 8;
    b.turn = b.empty + STAGES * 8;
    b.rank = (int)blockIdx.x % F8_WIDE_BLOCKS;
    b.cluster = (int)blockIdx.x / F8_WIDE_BLOCKS;
    b.n_clusters = (int)gridDim.x / F8_WIDE_BLOCKS;
    const int group = (int)threadIdx.x / 128 - 1; /* -1: the producer */
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(b.full + 8 * s, 1);
            barrier_init(b.turn + 8 * s, 1);
            barrier_init(b.empty + 8 * s, F8_WIDE_BLOCKS * 8); /* warps that multiply */
        }
        asm volatile("prefetch.tensormap [%0];" ::"l"(&call.x_map));
        asm volatile("prefetch.tensormap [%0];" ::"l"(&call.weight_map));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    device_let_next_begin();
    wide_cluster_meet(); /* both blocks' mbarriers are initialised */
    device_wait_for_last();
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) f8_fetch_all<PANELS>(call, b);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        f8_ring ring = {0, 0};
        f8_sums<PANELS> sums;
        for (int tile = b.cluster; tile < call.tiles; tile += b.n_clusters) {
            f8_multiply_tile<PANELS>(call, b, group, ring, sums);
            end(b, group, tile, sums);
        }
        if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncwarp();
    wide_cluster_meet(); /* no block copies or arrives here any more */
}
