/* linear for batches, bound by reading the weight once: a tile of its rows times all rows of x.
 *
 * The weight's rows are the rows of wgmma and x's rows its columns, so that weights stream through
 * shared memory by the tensor memory accelerator whatever the batch. A producer warp copies weights
 * before the previous kernel has ended, and x afterwards (programmatic dependent launch). Small
 * weights have too few tiles for the GPU, so the blocks of a cluster share a tile, each with a part
 * of every row; with large weights the blocks of a cluster share x, of which each copies a part for
 * all.
 *
 * A row's sums are added in an order that depends only on the weight's shape: in steps along the
 * row, then the parts in the order of their ranks. Neither the number of rows nor their neighbours
 * change a bit.
 */
#pragma once

#include "op/attention/wgmma.cuh"
#include "op/barrier.cuh"
#include "op/device.cuh"
#include "op/linear/linear_stream.h"
#include "op/silu_and_mul/silu_and_mul.cuh"

/* ---- clusters and copies ------------------------------------------------------------------- */

/* All threads of a cluster's blocks meet. Orders no memory accesses. */
DEVICE_FN void stream_cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

/* Copies from this block's shared memory to that of block `rank`, whose mbarrier counts the bytes.
 */
DEVICE_FN void stream_give(uint32_t from, uint32_t to, int bytes, uint32_t barrier, int rank)
{
    asm volatile("{ .reg .b32 there, counted;\n"
                 "mapa.shared::cluster.u32 there, %0, %4;\n"
                 "mapa.shared::cluster.u32 counted, %3, %4;\n"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[there], [%1], %2, [counted]; }" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier), "r"(rank)
                 : "memory");
}

/* Copies a box of a tensor map to shared memory: of two dimensions, or of three where coordinate 0
 * is 0, or of five where coordinates 2 and 4 are 0. */
DEVICE_FN void stream_copy_2d(uint32_t to, const char *map, int c0, int c1, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(barrier)
                 : "memory");
}

DEVICE_FN void stream_copy_3d(uint32_t to, const char *map, int c1, int c2, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(c1), "r"(c2), "r"(barrier)
                 : "memory");
}

DEVICE_FN void stream_copy_3d_with(uint32_t to, const char *map, int c1, int c2, uint32_t barrier,
                                   uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(0), "r"(c1), "r"(c2), "r"(barrier), "l"(policy)
                 : "memory");
}

DEVICE_FN void stream_copy_5d(uint32_t to, const char *map, int c0, int c1, int c3,
                              uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %4}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(c0), "r"(c1), "r"(0), "r"(c3), "r"(barrier), "l"(policy)
                 : "memory");
}

/* ---- fetching ------------------------------------------------------------------------------ */

/* Where a block's stages and mbarriers are in shared memory, and what it multiplies. */
struct stream_block {
    char *shared;
    uint32_t stages, full, empty, given;
    int tile, rank;
    int first, n;      /* steps along the row */
    int x_row, n_rows; /* of x */
};

template <int COLUMNS>
DEVICE_FN stream_block stream_block_of(const linear_stream &call, char *shared)
{
    stream_block b;
    b.shared = shared;
    b.stages = (uint32_t)__cvta_generic_to_shared(shared);
    b.full = b.stages + (uint32_t)(call.stages * LINEAR_STREAM_STAGE(COLUMNS));
    b.empty = b.full + LINEAR_STREAM_MAX_STAGES * 8;
    b.given = b.empty + LINEAR_STREAM_MAX_STAGES * 8;
    b.rank = (int)blockIdx.x % call.ranks;
    b.tile = (int)blockIdx.x / call.ranks;
    b.first = call.n_steps * b.rank / call.ranks;
    b.n = call.n_steps * (b.rank + 1) / call.ranks - b.first;
    b.x_row = (int)blockIdx.y * COLUMNS;
    b.n_rows = min(call.n_rows - b.x_row, COLUMNS);
    return b;
}

/* The first column of the block's step i. */
DEVICE_FN int stream_column(const stream_block &b, int i)
{
    return (b.first + i) * LINEAR_STREAM_DEPTH;
}

DEVICE_FN void stream_fetch_weight(const linear_stream &call, const stream_block &b, int step,
                                   uint32_t to, uint32_t barrier, uint64_t policy)
{
    int at = b.tile * call.weight_step;
    int c1 = call.weight_dimension == 1 ? (int)call.begin + at : 0;
    int c3 = call.weight_dimension == 3 ? at : 0;
    stream_copy_5d(to, call.weight_map, stream_column(b, step), c1, c3, barrier, policy);
}

/* Bytes that come to a stage. */
template <int COLUMNS> DEVICE_FN int stream_bytes(const linear_stream &call)
{
    return (call.tile_rows + COLUMNS) * LINEAR_STREAM_DEPTH * 2;
}

DEVICE_FN void stream_fetch_x(const linear_stream &call, const stream_block &b, int step,
                              uint32_t to, uint32_t barrier)
{
    stream_copy_2d(to, call.x_map, stream_column(b, step), b.x_row, barrier);
}

/* One thread: initialises the mbarriers and copies as many weights as there is room for. */
template <int COLUMNS>
DEVICE_FN void stream_begin(const linear_stream &call, const stream_block &b, uint64_t policy)
{
    for (int s = 0; s < call.stages; s++) {
        barrier_init(b.full + 8 * s, 1);
        barrier_init(b.empty + 8 * s, 2);
    }
    barrier_init(b.given, 1);
    asm volatile("prefetch.tensormap [%0];" ::"l"(&call.weight_map));
    asm volatile("prefetch.tensormap [%0];" ::"l"(&call.x_map));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int i = 0; i < call.stages && i < b.n; i++) {
        barrier_expect(b.full + 8 * i, stream_bytes<COLUMNS>(call));
        stream_fetch_weight(call, b, i, b.stages + i * LINEAR_STREAM_STAGE(COLUMNS), b.full + 8 * i,
                            policy);
    }
}

/* The same thread, when x is there. */
template <int COLUMNS>
DEVICE_FN void stream_fetch(const linear_stream &call, const stream_block &b, uint64_t policy)
{
    const uint32_t x_at = LINEAR_STREAM_ROWS * LINEAR_STREAM_DEPTH * 2;
    int stage = 0, round = 0;
    for (int i = 0; i < b.n; i++) {
        uint32_t to = b.stages + stage * LINEAR_STREAM_STAGE(COLUMNS), full = b.full + 8 * stage;
        if (round > 0) {
            barrier_wait(b.empty + 8 * stage, (round - 1) & 1);
            barrier_expect(full, stream_bytes<COLUMNS>(call));
            stream_fetch_weight(call, b, i, to, full, policy);
        }
        stream_fetch_x(call, b, i, to + x_at, full);
        if (++stage == call.stages) stage = 0, round++;
    }
}

/* ---- multiplying --------------------------------------------------------------------------- */

/* A warpgroup's sums: 64 rows of the weight by COLUMNS rows of x, in wgmma's order. Of a low tile
 * the second group has no rows; its sums are dropped. */
template <int COLUMNS> struct stream_sums {
    float of[COLUMNS / 8][4];
};

template <int COLUMNS>
DEVICE_FN void stream_multiply(const linear_stream &call, const stream_block &b,
                               stream_sums<COLUMNS> &sums)
{
    const uint32_t row_bytes = LINEAR_STREAM_DEPTH * 2;
    int group = (int)threadIdx.x / 128, stage = 0, round = 0;
    bool one = threadIdx.x % 128 == 0;
    for (int i = 0; i < b.n; i++) {
        uint32_t at = b.stages + stage * LINEAR_STREAM_STAGE(COLUMNS);
        uint64_t weight = wgmma_operand(at + group * 64 * row_bytes, 64);
        uint64_t x = wgmma_operand(at + LINEAR_STREAM_ROWS * row_bytes, 64);
        barrier_wait(b.full + 8 * stage, round & 1);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < LINEAR_STREAM_DEPTH / 16; k++)
            wgmma_scores(__nv_bfloat16(), sums.of, weight + 2 * k, x + 2 * k, i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        if (one) barrier_arrive(b.empty + 8 * stage); /* the stage may be overwritten */
        if (++stage == call.stages) stage = 0, round++;
    }
    wgmma_hold(sums.of);
}

/* ---- storing sums ------------------------------------------------------------------------ */

/* Sums are stored as rows of x in float32 first, at a pitch without bank conflicts. */
enum { STREAM_PITCH = LINEAR_STREAM_ROWS + 4, STREAM_PAIR_PITCH = LINEAR_STREAM_ROWS / 2 + 4 };

/* Stores the sums of a thread's columns 8 q + 2 t and the next, of rows g and g + 8, as (x, y) and
 * (z, w). */
DEVICE_FN void stream_turn(const linear_stream &call, float *rows, int q, float4 sum)
{
    int lane = threadIdx.x % WARP, sixteen = threadIdx.x / WARP, g = lane / 4;
    int row = q * 8 + lane % 4 * 2;
    if (call.end_kind == LINEAR_STREAM_SILU) {
        float *to = rows + row * STREAM_PAIR_PITCH + sixteen * 8 + g;
        to[0] = silu(sum.x) * sum.z;
        to[STREAM_PAIR_PITCH] = silu(sum.y) * sum.w;
        return;
    }
    float *to = rows + row * STREAM_PITCH + sixteen * 16 + g;
    to[0] = sum.x;
    to[STREAM_PITCH] = sum.y;
    to[8] = sum.z;
    to[STREAM_PITCH + 8] = sum.w;
}

/* Four neighbours of a row. */
DEVICE_FN void stream_store(const linear_stream &call, int64_t row, int64_t feature, float4 sum)
{
    float v[4] = {sum.x, sum.y, sum.z, sum.w}, *out = call.out + row * call.out_pitch + feature;
    const float *residual = call.residual + row * call.residual_pitch + feature;
    bool whole = call.vectors && feature + 4 <= call.end;
    if (call.bias)
        for (int i = 0; i < 4; i++)
            if (feature + i < call.end)
                v[i] += device_load((dtype)call.bias_type, call.bias, feature + i);
    if (whole) {
        if (call.residual) {
            float4 r = *(const float4 *)residual;
            v[0] += r.x, v[1] += r.y, v[2] += r.z, v[3] += r.w;
        }
        *(float4 *)out = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    for (int i = 0; i < 4; i++)
        if (feature + i < call.end) out[i] = v[i] + (call.residual ? residual[i] : 0.0f);
}

/* Stores rows [first, first + n) of this block's rows of x from shared memory in out. */
DEVICE_FN void stream_leave(const linear_stream &call, const stream_block &b, const float *rows,
                            int first, int n)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (call.end_kind == LINEAR_STREAM_SILU) {
        int64_t feature = (int64_t)b.tile * (LINEAR_STREAM_ROWS / 2) + lane % 16 * 4;
        for (int r = 2 * warp + lane / 16; r < n; r += 16)
            if (feature < call.end)
                device_narrow(call.narrowed + (b.x_row + first + r) * call.end + feature,
                              *(const float4 *)(rows + r * STREAM_PAIR_PITCH + lane % 16 * 4));
        return;
    }
    int64_t feature = call.begin + (int64_t)b.tile * call.tile_rows + lane * 4;
    for (int r = warp; r < n; r += 8)
        if (lane * 4 < call.tile_rows && feature < call.end)
            stream_store(call, b.x_row + first + r, feature,
                         *(const float4 *)(rows + r * STREAM_PITCH + lane * 4));
}

/* The two warpgroups meet. */
DEVICE_FN void stream_groups_meet(void)
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

template <int COLUMNS>
DEVICE_FN void stream_end_own(const linear_stream &call, const stream_block &b,
                              const stream_sums<COLUMNS> &sums)
{
    float *rows = (float *)b.shared;
    stream_groups_meet(); /* no thread reads the stages any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++) {
        stream_turn(call, rows, q, *(const float4 *)sums.of[q]);
    }
    stream_groups_meet(); /* sums are in rows of x */
    stream_leave(call, b, rows, 0, b.n_rows);
}

/* ---- a tile of several blocks -------------------------------------------------------------- */

/* The ranks exchange sums in eights of columns, of four sums for each of 256 threads. Returns how
 * many eights go to block `rank`. */
DEVICE_FN int stream_share(const stream_block &b, int share, int rank)
{
    return max(0, min(share, (b.n_rows + 7) / 8 - rank * share));
}

/* Adds up this block's share of the columns, the ranks in their order. */
template <int COLUMNS>
DEVICE_FN void stream_end_share(const linear_stream &call, const stream_block &b, int share,
                                int own)
{
    const float4 *given = (const float4 *)(b.shared + LINEAR_STREAM_SUMS(COLUMNS));
    const float4 *mine = (const float4 *)b.shared + b.rank * share * 256;
    float *rows = (float *)(given + call.ranks * share * 256); /* after what all ranks sent */
    for (int q = 0; q < own; q++) {
        const int at = q * 256 + threadIdx.x;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < LINEAR_STREAM_MAX_RANKS; r++) {
            if (r >= call.ranks) continue;
            float4 v = r == b.rank ? mine[at] : given[r * own * 256 + at];
            sum.x += v.x, sum.y += v.y;
            sum.z += v.z, sum.w += v.w;
        }
        stream_turn(call, rows, q, sum);
    }
    stream_groups_meet(); /* sums are in rows of x */
    int row = b.rank * share * 8;
    stream_leave(call, b, rows, row, min(own * 8, b.n_rows - row));
}

/* All threads: each block of the cluster sends the others their shares of its sums, and finishes
 * its own share. */
template <int COLUMNS>
DEVICE_FN void stream_end_shared(const linear_stream &call, const stream_block &b, bool multiplies,
                                 const stream_sums<COLUMNS> &sums)
{
    const int EIGHT = 4096; /* bytes */
    int share = (COLUMNS / 8 + call.ranks - 1) / call.ranks, own = stream_share(b, share, b.rank);
    if (own > 0 && threadIdx.x == 0) barrier_expect(b.given, own * EIGHT * (call.ranks - 1));
    stream_cluster_meet(); /* no block needs the stages any more */
    if (!multiplies) return;
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
        ((float4 *)b.shared)[q * 256 + threadIdx.x] = *(const float4 *)sums.of[q];
    wgmma_publish();
    stream_groups_meet(); /* this block's sums are complete and may be copied */
    int rank = (int)threadIdx.x, theirs = stream_share(b, share, rank);
    if (rank < call.ranks && rank != b.rank && theirs > 0)
        stream_give(b.stages + rank * share * EIGHT,
                    b.stages + LINEAR_STREAM_SUMS(COLUMNS) + b.rank * theirs * EIGHT,
                    theirs * EIGHT, b.given, rank);
    if (own == 0) return;
    barrier_wait(b.given, 0);
    stream_end_share<COLUMNS>(call, b, share, own);
}

/* ---- a block ------------------------------------------------------------------------------- */

/* Grid: tiles times ranks, then groups of COLUMNS rows of x. */
template <int COLUMNS> DEVICE_FN void linear_stream_run(const linear_stream &call, char *shared)
{
    stream_block b = stream_block_of<COLUMNS>(call, shared);
    bool multiplies = threadIdx.x < 256, fetches = threadIdx.x == 256;
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    if (fetches) stream_begin<COLUMNS>(call, b, policy);
    device_let_next_begin();
    __syncthreads(); /* the mbarriers are initialised */
    device_wait_for_last();
    if (fetches) stream_fetch<COLUMNS>(call, b, policy);
    stream_sums<COLUMNS> sums;
    if (multiplies) stream_multiply<COLUMNS>(call, b, sums);
    __syncwarp();
    if (call.ranks > 1) {
        stream_end_shared<COLUMNS>(call, b, multiplies, sums);
        stream_cluster_meet(); /* other blocks have copied what they need from here */
    } else if (multiplies) {
        stream_end_own<COLUMNS>(call, b, sums);
    }
}
