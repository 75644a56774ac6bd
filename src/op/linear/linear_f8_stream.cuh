/* Products of matrices in FP8 with up to 64 rows of x in FP8 (linear_f8.h), bound by reading the
 * weight once.
 *
 * Tiles, clusters and parts are those of linear_stream.cuh. The sums of 64 columns, times the
 * scales of the weight's row and of x's row, are added in float32 registers.
 */
#pragma once

#include "op/barrier.cuh"
#include "op/linear/linear_f8.cuh"
#include "op/linear/linear_stream.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"

/* ---- fetching ------------------------------------------------------------------------------ */

struct f8_stream_block {
    stream_block of;
    uint32_t scales;
    int panel, group; /* where the tile's rows begin: a panel, and eight rows of it */
};

template <int COLUMNS>
DEVICE_FN f8_stream_block f8_stream_block_of(const linear_f8_stream &call, char *shared)
{
    const linear_stream &run = call.run;
    f8_stream_block b;
    b.of = stream_block_of<COLUMNS>(run, shared);
    b.scales = b.of.stages + run.stages * F8_STREAM_STAGE(COLUMNS);
    b.of.full = b.scales + run.stages * F8_STREAM_SCALES(COLUMNS);
    b.of.empty = b.of.full + LINEAR_STREAM_MAX_STAGES * 8;
    b.of.given = b.of.empty + LINEAR_STREAM_MAX_STAGES * 8;
    const bool halves = run.end_kind == LINEAR_STREAM_SILU || run.tile_rows < F8_ROWS;
    b.panel = halves ? b.of.tile / 2 : b.of.tile;
    b.group = halves ? b.of.tile % 2 * 8 : 0;
    return b;
}

DEVICE_FN void f8_stream_copy_5d(uint32_t to, const char *map, int column, int group, int panel,
                                 uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(column), "r"(0), "r"(group), "r"(panel), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Bytes that come to a stage: numbers and scales. */
template <int COLUMNS> DEVICE_FN int f8_stream_bytes(const linear_stream &run)
{
    return run.tile_rows * (F8_COLUMNS + 4) + COLUMNS * (F8_COLUMNS + 8);
}

template <int COLUMNS>
DEVICE_FN void f8_stream_fetch_weight(const linear_f8_stream &call, const f8_stream_block &b, int i,
                                      int stage, uint64_t policy)
{
    const linear_stream &run = call.run;
    const uint32_t full = b.of.full + 8 * stage;
    const uint32_t scales = b.scales + stage * F8_STREAM_SCALES(COLUMNS);
    const int step = b.of.first + i;
    const char *from = call.weight + b.panel * call.panel_bytes +
                       (int64_t)run.n_steps * F8_COLUMNS * F8_ROWS + step * F8_SCALES +
                       b.group * 32;
    barrier_expect(full, f8_stream_bytes<COLUMNS>(run));
    f8_stream_copy_5d(b.of.stages + stage * F8_STREAM_STAGE(COLUMNS), run.weight_map,
                      step * (F8_COLUMNS / 2), b.group, b.panel, full, policy);
    if (run.end_kind == LINEAR_STREAM_SILU) {
        f8_copy(scales, from, F8_SCALES / 2, full);
        f8_copy(scales + F8_SCALES / 2, from + call.up_panels * call.panel_bytes, F8_SCALES / 2,
                full);
    } else {
        f8_copy(scales, from, run.tile_rows * 4, full);
    }
}

/* One thread: initialises the mbarriers and copies as many weights as there is room for. */
template <int COLUMNS>
DEVICE_FN void f8_stream_begin(const linear_f8_stream &call, const f8_stream_block &b,
                               uint64_t policy)
{
    for (int s = 0; s < call.run.stages; s++) {
        barrier_init(b.of.full + 8 * s, 1);
        barrier_init(b.of.empty + 8 * s, 8); /* warps */
    }
    barrier_init(b.of.given, 1);
    asm volatile("prefetch.tensormap [%0];" ::"l"(&call.run.weight_map));
    asm volatile("prefetch.tensormap [%0];" ::"l"(&call.run.x_map));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int i = 0; i < call.run.stages && i < b.of.n; i++)
        f8_stream_fetch_weight<COLUMNS>(call, b, i, i, policy);
}

/* The same thread, when x is there. */
template <int COLUMNS>
DEVICE_FN void f8_stream_fetch(const linear_f8_stream &call, const f8_stream_block &b,
                               uint64_t policy)
{
    int stage = 0, round = 0;
    for (int i = 0; i < b.of.n; i++) {
        const uint32_t full = b.of.full + 8 * stage;
        const uint32_t scales = b.scales + stage * F8_STREAM_SCALES(COLUMNS) + F8_SCALES;
        const int step = b.of.first + i;
        const float *from = call.x_scales + 2 * step * F8_FEW;
        if (round > 0) {
            barrier_wait(b.of.empty + 8 * stage, (round - 1) & 1);
            f8_stream_fetch_weight<COLUMNS>(call, b, i, stage, policy);
        }
        stream_copy_2d(b.of.stages + stage * F8_STREAM_STAGE(COLUMNS) + F8_ROWS * F8_COLUMNS,
                       call.run.x_map, step * (F8_COLUMNS / 2), 0, full);
        f8_copy(scales, from, COLUMNS * 4, full);
        f8_copy(scales + COLUMNS * 4, from + F8_FEW, COLUMNS * 4, full);
        if (++stage == call.run.stages) stage = 0, round++;
    }
}

/* ---- multiplying --------------------------------------------------------------------------- */

/* Adds the sums of 64 columns, times the scales of the lane's rows of the weight and of rows of x.
 */
template <int COLUMNS>
DEVICE_FN void f8_stream_add(const float (&part)[COLUMNS / 8][4], float low, float high,
                             uint32_t scales, stream_sums<COLUMNS> &sums)
{
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++) {
        const float2 s = f8_load2(scales + q * 32);
        sums.of[q][0] = fmaf(part[q][0], low * s.x, sums.of[q][0]);
        sums.of[q][1] = fmaf(part[q][1], low * s.y, sums.of[q][1]);
        sums.of[q][2] = fmaf(part[q][2], high * s.x, sums.of[q][2]);
        sums.of[q][3] = fmaf(part[q][3], high * s.y, sums.of[q][3]);
    }
}

template <int COLUMNS>
DEVICE_FN void f8_stream_multiply(const linear_f8_stream &call, const f8_stream_block &b,
                                  stream_sums<COLUMNS> &sums)
{
    const bool pairs = call.run.end_kind == LINEAR_STREAM_SILU;
    const int lane = threadIdx.x % WARP, sixteen = threadIdx.x / WARP, g = lane / 4;
    const uint32_t first = pairs ? sixteen * 32 + g * 4 : (sixteen * 16 + g) * 4;
    const uint32_t second = pairs ? F8_SCALES / 2 : 32; /* of the row that is 8 below */
    const int group = threadIdx.x / 128;
    constexpr int AT_ONCE = COLUMNS < 64 ? 2 : 1; /* 64 columns each: registers are few */
    float part[AT_ONCE][COLUMNS / 8][4];
    int stage = 0, round = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums.of[i][j] = part[0][i][j] = part[AT_ONCE - 1][i][j] = 0;
    for (int i = 0; i < b.of.n; i++) {
        const uint32_t at = b.of.stages + stage * F8_STREAM_STAGE(COLUMNS);
        const uint32_t scales = b.scales + stage * F8_STREAM_SCALES(COLUMNS);
        const uint64_t weight = wgmma_operand(at + group * 64 * F8_COLUMNS, 64);
        const uint64_t x = wgmma_operand(at + F8_ROWS * F8_COLUMNS, 64);
        barrier_wait(b.of.full + 8 * stage, round & 1);
        const float low = f8_load(scales + first), high = f8_load(scales + first + second);
        const uint32_t of_x = scales + F8_SCALES + lane % 4 * 8;
#pragma unroll
        for (int half = 0; half < 2; half += AT_ONCE) {
            wgmma_hold(part[0]);
            wgmma_hold(part[AT_ONCE - 1]);
            wgmma_begin();
#pragma unroll
            for (int h = 0; h < AT_ONCE; h++) {
                const int at_columns = 4 * (half + h);
                f8_multiply(part[h], weight + at_columns, x + at_columns, 0);
                f8_multiply(part[h], weight + at_columns + 2, x + at_columns + 2, 1);
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_hold(part[0]);
            wgmma_hold(part[AT_ONCE - 1]);
#pragma unroll
            for (int h = 0; h < AT_ONCE; h++)
                f8_stream_add<COLUMNS>(part[h], low, high, of_x + (half + h) * COLUMNS * 4, sums);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(b.of.empty + 8 * stage); /* the stage may be overwritten */
        if (++stage == call.run.stages) stage = 0, round++;
    }
}

/* ---- storing silu(gate) * up ---------------------------------------------------------------- */

/* Rows [first, first + n) of this block's 64 features in FP8: 16 lanes have a row. */
DEVICE_FN void f8_stream_leave(const linear_f8_stream &call, const stream_block &b,
                               const float *rows, int first, int n)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, at = lane % 16 * 4;
    const int64_t features = call.run.end;
    for (int r = 2 * warp; r < n; r += 16) {
        const int own = r + lane / 16, row = min(own, n - 1);
        float4 v = *(const float4 *)(rows + row * STREAM_PAIR_PITCH + at);
        v = make_float4(f8_first(v.x), f8_first(v.y), f8_first(v.z), f8_first(v.w));
        const float2 s = f8_scale(f8_largest_of(ALL_LANES, 16, f8_largest(v)));
        if (own >= n) continue;
        *(uint32_t *)((char *)call.run.narrowed + (first + row) * features + b.tile * 64 + at) =
            f8_pack4(v, s.y);
        if (lane % 16 == 0) call.out_scales[b.tile * F8_FEW + first + row] = s.x;
    }
}

/* A tile of gates and ups belongs to one block. */
template <int COLUMNS>
DEVICE_FN void f8_stream_activate(const linear_f8_stream &call, const stream_block &b,
                                  const stream_sums<COLUMNS> &sums)
{
    float *rows = (float *)b.shared;
    stream_groups_meet(); /* no thread reads the stages any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
        stream_turn(call.run, rows, q, *(const float4 *)sums.of[q]);
    stream_groups_meet(); /* sums are in rows of x */
    f8_stream_leave(call, b, rows, 0, b.n_rows);
}

/* ---- a block ------------------------------------------------------------------------------- */

/* Grid: tiles times ranks. */
template <int COLUMNS>
DEVICE_FN void linear_f8_stream_run(const linear_f8_stream &call, char *shared)
{
    const f8_stream_block b = f8_stream_block_of<COLUMNS>(call, shared);
    const bool multiplies = threadIdx.x < 256, fetches = threadIdx.x == 256;
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    if (fetches) f8_stream_begin<COLUMNS>(call, b, policy);
    device_let_next_begin();
    __syncthreads(); /* the mbarriers are initialised */
    device_wait_for_last();
    if (fetches) f8_stream_fetch<COLUMNS>(call, b, policy);
    stream_sums<COLUMNS> sums;
    if (multiplies) f8_stream_multiply<COLUMNS>(call, b, sums);
    __syncwarp();
    if (call.run.ranks > 1) {
        stream_end_shared<COLUMNS>(call.run, b.of, multiplies, sums);
        stream_cluster_meet(); /* other blocks have copied what they need from here */
    } else if (multiplies && call.run.end_kind == LINEAR_STREAM_SILU) {
        f8_stream_activate<COLUMNS>(call, b.of, sums);
    } else if (multiplies) {
        stream_end_own<COLUMNS>(call.run, b.of, sums);
    }
}
