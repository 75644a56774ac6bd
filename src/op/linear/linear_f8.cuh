/* Products of matrices in FP8: panels, x in FP8, and many rows of x (linear_f8.h).
 *
 * Both sides are FP8, in which the tensor cores multiply at twice the rate of BF16. They add 128
 * columns of products at a time; those sums, times the scales of x and of the weight, are added in
 * float32 registers. Tiles, clusters and the ring are those of linear_wide.cuh. While one warpgroup
 * scales its sums the other one multiplies.
 */
#ifndef QUIPU_OP_LINEAR_F8_CUH
#define QUIPU_OP_LINEAR_F8_CUH

#include "op/attention/wgmma.cuh"
#include "op/barrier.cuh"
#include "op/f8.cuh"
#include "op/linear/linear_f8.h"
#include "op/linear/linear_stream.cuh"
#include "op/linear/linear_wide.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"
#include "tensor/decode.cuh"

/* ---- panels -------------------------------------------------------------------------------- */

/* Rows of F8_128 into panels, a warp for 128 numbers. Rows that fill the last panel are zero. */
DEVICE_FN void f8_arrange(const tensor &from, char *to)
{
    const int64_t rows = from.shape[0], columns = from.shape[1], steps = columns / F8_COLUMNS;
    const int64_t panels = (rows + F8_ROWS - 1) / F8_ROWS;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / WARP;
    const int lane = threadIdx.x % WARP;
    device_take_turn();
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
         i < panels * F8_ROWS * steps; i += warps) {
        const int64_t row = i / steps, step = i % steps;
        const uint32_t *block =
            (const uint32_t *)(device_row(from, row) + step * BLOCK_BYTES_F8_128);
        char *panel = to + row / F8_ROWS * F8_PANEL(columns);
        const uint32_t word = row < rows ? block[1 + lane] : 0;
        *(uint32_t *)(panel + row % F8_ROWS * columns + step * F8_COLUMNS + lane * 4) = word;
        if (lane == 0)
            *(uint32_t *)(panel + F8_ROWS * columns + step * F8_SCALES + row % F8_ROWS * 4) =
                row < rows ? block[0] : 0;
    }
}

/* ---- x in FP8 ------------------------------------------------------------------------------ */

enum { F8_QUANTISE_ROWS = 8, F8_QUANTISE_STEPS = 4 };

/* Rows of x in BF16 to FP8: a warp for one row and F8_QUANTISE_STEPS times 128 columns. */
template <int GROUP>
DEVICE_FN void f8_quantise(const tensor &from, uint8_t *to, float *scales, int64_t pitch)
{
    const int64_t columns = from.shape[1];
    const int64_t row = (int64_t)blockIdx.x * F8_QUANTISE_ROWS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, steps = (int)(columns / F8_COLUMNS);
    const int first = (int)blockIdx.y * F8_QUANTISE_STEPS;
    device_take_turn();
    if (row >= from.shape[0]) return;
    uint2 raw[F8_QUANTISE_STEPS];
#pragma unroll
    for (int i = 0; i < F8_QUANTISE_STEPS; i++)
        if (first + i < steps)
            raw[i] = *(const uint2 *)(device_row(from, row) + (first + i) * 256 + lane * 8);
#pragma unroll
    for (int i = 0; i < F8_QUANTISE_STEPS; i++) {
        if (first + i >= steps) continue;
        const float2 low = __bfloat1622float2(*(const __nv_bfloat162 *)&raw[i].x);
        const float2 high = __bfloat1622float2(*(const __nv_bfloat162 *)&raw[i].y);
        const float4 v = make_float4(low.x, low.y, high.x, high.y);
        const float2 s = f8_scale(f8_largest_of(ALL_LANES, GROUP / 4, f8_largest(v)));
        *(uint32_t *)(to + row * columns + (first + i) * F8_COLUMNS + lane * 4) = f8_pack4(v, s.y);
        if (lane % (GROUP / 4) == 0)
            scales[((first + i) * (128 / GROUP) + lane / (GROUP / 4)) * pitch + row] = s.x;
    }
}

/* ---- wgmma --------------------------------------------------------------------------------- */

/* d (64, COLUMNS) = [d +] a (64, 32) b (COLUMNS, 32)^T in FP8, both in shared memory. */
#define F8_WGMMA(COLUMNS, TILES, A, B, ADD)                                                        \
    DEVICE_FN void f8_multiply(float(&d)[TILES][4], uint64_t a, uint64_t b, int add)               \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\n"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 "             \
                     "" WGMMA_NAMES##TILES ", %" A ", %" B ", p, 1, 1;\n}"                         \
                     : WGMMA_D##TILES                                                              \
                     : "l"(a), "l"(b), "r"(add)                                                    \
                     : "memory");                                                                  \
    }
F8_WGMMA(16, 2, "8", "9", "10")
F8_WGMMA(32, 4, "16", "17", "18")
F8_WGMMA(64, 8, "32", "33", "34")
F8_WGMMA(128, 16, "64", "65", "66")
#undef F8_WGMMA

/* ---- many rows: fetching ------------------------------------------------------------------- */

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

DEVICE_FN void f8_copy(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
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

/* ---- many rows: multiplying ---------------------------------------------------------------- */

/* A warpgroup's sums of a tile: the first panel's features, then the second's, in wgmma's order. */
template <int PANELS> using f8_sums = float[PANELS * F8_ROWS / 8][4];

DEVICE_FN float2 f8_load2(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
    return v;
}
DEVICE_FN uint4 f8_load16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
DEVICE_FN float f8_load(uint32_t address)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}

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

/* ---- many rows: silu_and_mul --------------------------------------------------------------- */

/* The features of a tile in FP8 with a scale a row. */
DEVICE_FN void f8_activate(const linear_f8_wide &call, const f8_block &b, int group, int tile,
                           f8_sums<2> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const uint32_t out = b.out + group * (F8_WIDE_OUT / 2);
    const int own = thread / 32 * 16 + g, panel = f8_panel(call, tile);
    const int first = f8_row(call, b, tile) + group * 64;
    float largest[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sums[i][j] = f8_first(silu(sums[i][j]) * sums[16 + i][j]);
            largest[j / 2] = fmaxf(largest[j / 2], fabsf(sums[i][j]));
        }
    if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    wide_group_meets(group); /* what was there has been copied */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 s = f8_scale(f8_largest_of(ALL_LANES, 4, largest[r]));
        const int row = own + 8 * r;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint16_t pair = f8_pack2(sums[i][2 * r], sums[i][2 * r + 1], s.y);
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(out + row * F8_COLUMNS +
                                                         ((i / 2 ^ g) * 16) + i % 2 * 8 + t * 2),
                         "h"(pair)
                         : "memory");
        }
        if (t == 0) call.out_scales[panel * call.x_pitch + first + row] = s.x;
    }
    wgmma_publish();
    wide_group_meets(group); /* all rows are complete */
    if (thread == 0) {
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                call.out_map),
            "r"(panel * (F8_COLUMNS / 2)), "r"(first), "r"(out)
            : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

/* ---- many rows: plain ---------------------------------------------------------------------- */

/* Four neighbours of a row, from every second lane's two: lanes 2 i have those of eight q, lanes 2
 * i
 * + 1 those of the next eight. */
DEVICE_FN float4 f8_four(const float *q, const float *next)
{
    const bool odd = threadIdx.x % 2;
    const float x = __shfl_xor_sync(ALL_LANES, odd ? q[0] : next[0], 1);
    const float y = __shfl_xor_sync(ALL_LANES, odd ? q[1] : next[1], 1);
    return odd ? make_float4(x, y, next[0], next[1]) : make_float4(q[0], q[1], x, y);
}

/* Adds bias and residual, which may be out, and stores; features are a multiple of four. */
template <int PANELS>
DEVICE_FN void f8_leave(const linear_f8_wide &call, const f8_block &b, int group, int tile,
                        const f8_sums<PANELS> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const int first = f8_row(call, b, tile) + group * 64 + thread / 32 * 16 + g;
    const int feature = f8_panel(call, tile) * F8_ROWS + t % 2 * 8 + t / 2 * 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first + 8 * r;
        float *out = call.out + row * call.out_pitch + feature;
        const float *residual = call.residual + row * call.residual_pitch + feature;
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            float4 kept[8], v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = p * F8_ROWS + i * 16;
                const bool there = row < call.n_rows && feature + at < call.features;
                kept[i] = call.residual && there ? *(const float4 *)(residual + at)
                                                 : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int q = p * 16 + 2 * i;
                v[i] = f8_four(&sums[q][2 * r], &sums[q + 1][2 * r]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = p * F8_ROWS + i * 16;
                if (row >= call.n_rows || feature + at >= call.features) continue;
                const float4 bias = call.bias ? device_load4((dtype)call.bias_type, call.bias,
                                                             feature + at, call.features)
                                              : make_float4(0, 0, 0, 0);
                *(float4 *)(out + at) =
                    make_float4(v[i].x + bias.x + kept[i].x, v[i].y + bias.y + kept[i].y,
                                v[i].z + bias.z + kept[i].z, v[i].w + bias.w + kept[i].w);
            }
        }
    }
}

/* ---- many rows: rope ----------------------------------------------------------------------- */

/* Copies eights of a panel's features from shared memory to q, or to their slots of the caches:
 * rows 8 r to 8 r + 7 of each 16 of a warpgroup's. */
template <int HEAD_DIM>
DEVICE_FN void f8_leave_heads(const rope_rows &rope, const append_rows &append, uint32_t from,
                              const longlong2 *places, int first_feature, int first_row, int r,
                              int n_rows)
{
    const int thread = (int)threadIdx.x % 128, eight = thread % 16;
    const int feature = first_feature + eight * 8, head = feature / HEAD_DIM;
    const int at = feature % HEAD_DIM * 2, n_kv_heads = rope.n_heads - rope.n_q_heads;
    const int of_k = head - rope.n_q_heads;
    if (of_k >= 2 * n_kv_heads) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int in = thread / 16, row = i * 16 + r * 8 + in; /* of the warpgroup */
        const int64_t token = first_row + row;
        char *to;
        if (token >= n_rows) continue;
        if (of_k < 0)
            to = rope.q.data + token * rope.q.stride + head * rope.q_head;
        else if (of_k < n_kv_heads)
            to = append.k_cache.data + places[row].x + of_k * append.k_cache_head;
        else
            to = append.v_cache.data + places[row].y + (of_k - n_kv_heads) * append.v_cache_head;
        *(uint4 *)(to + at) = f8_load16(from + (i * 8 + in) * 256 + ((eight ^ in) * 16));
    }
}

template <int PANELS, int HEAD_DIM>
DEVICE_FN void f8_turn_heads(const linear_f8_wide &call, const rope_rows &rope,
                             const append_rows &append, const f8_block &b, int group, int tile,
                             f8_sums<PANELS> &sums)
{
    const int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    const int feature = f8_panel(call, tile) * F8_ROWS;
    const int row = f8_row(call, b, tile) + group * 64;
    const uint32_t out = b.out + group * (F8_WIDE_OUT / 2);
    const uint32_t own = out + (thread / 32 * 8 + g) * 256 + t * 4;
    longlong2 *places = b.places + group * (F8_WIDE_ROWS / 2);
    if (feature + PANELS * F8_ROWS > rope.n_q_heads * HEAD_DIM) {
        wide_group_meets(group); /* the places of the tile before are no longer needed */
        wide_find_places(append, places, row, call.n_rows);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int token = min(row + thread / 32 * 16 + g + 8 * r, call.n_rows - 1);
        const wide_angles<HEAD_DIM> angles = wide_angles_of<HEAD_DIM>(rope, token);
#pragma unroll
        for (int h = 0; h < PANELS * F8_ROWS / HEAD_DIM; h++)
            if (feature / HEAD_DIM + h < rope.n_heads)
                wide_turn<HEAD_DIM>(rope.interleaved, angles, r, sums + h * HEAD_DIM / 8);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            wide_group_meets(group); /* what was there has been copied */
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const float *pair = &sums[p * 16 + i][2 * r];
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(own + (i ^ g) * 16),
                             "r"(device_pack2(rope.q.type, pair[0], pair[1]))
                             : "memory");
            }
            wide_group_meets(group); /* the rows are complete */
            f8_leave_heads<HEAD_DIM>(rope, append, out, places, feature + p * F8_ROWS, row, r,
                                     call.n_rows);
        }
    }
}

/* ---- many rows: a block -------------------------------------------------------------------- */

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

#endif
