/* Products of many rows with their epilogues, for sm_90a, bound by the tensor cores.
 *
 * A block takes one tile after another. A producer warp copies by the tensor memory accelerator, a
 * few steps ahead and on into the next tile; two warpgroups multiply 64 rows of x each by 256 rows
 * of the weight: 128 gates and their 128 ups, or whole heads. A thread then has both numbers of a
 * pair, so silu_and_mul and rope need no exchange. Sums stay in registers; results leave through
 * shared memory in 16 bits.
 *
 * The two blocks of a cluster have neighbouring rows of x and the same rows of the weight; each
 * copies half of the weight's rows for both. A stage is free when the warpgroups of both blocks
 * have read it.
 */
#pragma once

#include "op/attention/paged.cuh"
#include "op/attention/wgmma.cuh"
#include "op/barrier.cuh"
#include "op/device.cuh"
#include "op/linear/chain_likeliest.cuh"
#include "op/linear/linear_stream.cuh"
#include "op/linear/linear_wide.h"
#include "op/rope/rope_kv_append.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"

enum { WIDE_X_BYTES = LINEAR_WIDE_ROWS * LINEAR_WIDE_DEPTH * 2, WIDE_GROUPS = 2 };

/* Bytes of half of a stage's rows of the weight. */
template <int FEATURES> DEVICE_FN constexpr int wide_half_bytes(void)
{
    return FEATURES / 2 * LINEAR_WIDE_DEPTH * 2;
}

/* Where a block's stages and mbarriers are in shared memory, and which block of its cluster it is.
 */
struct wide_block {
    uint32_t stages, out, full, empty;
    longlong2 *places; /* of rows, in the caches of k and of v */
    int rank, cluster, n_clusters;
};

/* The next stage, and the parity of its round. */
struct wide_ring {
    int stage;
    uint32_t parity;
};
DEVICE_FN void wide_next(wide_ring &ring)
{
    if (++ring.stage == LINEAR_WIDE_STAGES) ring.stage = 0, ring.parity ^= 1;
}

DEVICE_FN void wide_cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Arrives at the mbarrier of block `rank` of the cluster that is where `barrier` is here. */
DEVICE_FN void wide_arrive(uint32_t barrier, int rank)
{
    asm volatile("{ .reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* Copies to the same place in both blocks; each block's own mbarrier counts the bytes. */
DEVICE_FN void wide_fetch_for_both(uint32_t to, const char *map, int column, int row,
                                   uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "h"((uint16_t)3), "l"(policy)
                 : "memory");
}

/* ---- fetching ------------------------------------------------------------------------------ */

/* Clusters take the rows of x first, so that at any time few rows of the weight are in use. */
DEVICE_FN int wide_row(const linear_wide &call, const wide_block &b, int tile)
{
    return (tile % call.row_tiles * LINEAR_WIDE_BLOCKS + b.rank) * LINEAR_WIDE_ROWS;
}
DEVICE_FN int wide_feature(const linear_wide &call, int tile)
{
    return tile / call.row_tiles * call.feature_step;
}

/* One thread. */
template <int FEATURES> DEVICE_FN void wide_fetch_all(const linear_wide &call, const wide_block &b)
{
    wide_ring ring = {0, 0};
    /* Weights stay in the L2 cache for a short time only; x is read for many tiles. */
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    for (int tile = b.cluster; tile < call.tiles; tile += b.n_clusters) {
        int row = wide_row(call, b, tile);
        int weight_row = wide_feature(call, tile) + b.rank * call.half_step;
        for (int step = 0; step < call.n_steps; step++, wide_next(ring)) {
            uint32_t to = b.stages + ring.stage * LINEAR_WIDE_STAGE, full = b.full + 8 * ring.stage;
            int column = step * LINEAR_WIDE_DEPTH;
            barrier_wait(b.empty + 8 * ring.stage, ring.parity ^ 1);
            barrier_expect(full, WIDE_X_BYTES + 2 * wide_half_bytes<FEATURES>());
            stream_copy_2d(to, call.x_map, column, row, full);
            wide_fetch_for_both(to + WIDE_X_BYTES + b.rank * wide_half_bytes<FEATURES>(),
                                call.weight_map, column, weight_row, full, policy);
        }
    }
}

/* ---- multiplying --------------------------------------------------------------------------- */

/* A warpgroup's sums of a tile: gates, then ups, or heads, in wgmma's order. */
template <int FEATURES> struct wide_sums_of {
    typedef float type[FEATURES / 8][4];
};
typedef wide_sums_of<LINEAR_WIDE_FEATURES>::type wide_sums;
typedef wide_sums_of<LINEAR_WIDE_NARROW>::type wide_narrow_sums;

/* As in wgmma.cuh, with 192 columns. */
DEVICE_FN void wgmma_scores(__nv_bfloat16, wide_narrow_sums &d, uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
                 "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
                 "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
                 "%66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
                 "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1, 0, 0;\n}"
                 : WGMMA_D16, WGMMA_D(16), WGMMA_D(17), WGMMA_D(18), WGMMA_D(19), WGMMA_D(20),
                   WGMMA_D(21), WGMMA_D(22), WGMMA_D(23)
                 : "l"(a), "l"(b), "r"(add)
                 : "memory");
}

/* The warpgroup has read the stage: signals both blocks. */
DEVICE_FN void wide_give(const wide_block &b, int stage)
{
    if (threadIdx.x % 128 < LINEAR_WIDE_BLOCKS)
        wide_arrive(b.empty + 8 * stage, (int)threadIdx.x % 128);
}

template <int FEATURES>
DEVICE_FN void wide_multiply(const linear_wide &call, const wide_block &b, int group,
                             wide_ring &ring, typename wide_sums_of<FEATURES>::type &sums)
{
    wgmma_hold(sums);
    for (int step = 0; step < call.n_steps; step++) {
        uint32_t at = b.stages + ring.stage * LINEAR_WIDE_STAGE;
        uint64_t x = wgmma_operand(at + group * 64 * 128, 64);
        uint64_t weight = wgmma_operand(at + WIDE_X_BYTES, FEATURES);
        barrier_wait(b.full + 8 * ring.stage, ring.parity);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < LINEAR_WIDE_DEPTH / 16; k++)
            wgmma_scores(__nv_bfloat16(), sums, x + 2 * k, weight + 2 * k, step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the step before is complete */
        if (step > 0) wide_give(b, (ring.stage + LINEAR_WIDE_STAGES - 1) % LINEAR_WIDE_STAGES);
        wide_next(ring);
    }
    wgmma_wait<0>();
    wgmma_hold(sums);
    wide_give(b, (ring.stage + LINEAR_WIDE_STAGES - 1) % LINEAR_WIDE_STAGES);
}

/* ---- silu_and_mul -------------------------------------------------------------------------- */

DEVICE_FN void wide_group_meets(int group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/* One thread of a warpgroup: copies its 64 rows from shared memory, 64 columns at a time. What is
 * beyond the last row or column is not written. */
DEVICE_FN void wide_leave(const linear_wide &call, uint32_t from, int feature, int row)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                call.out_map),
            "r"(feature + half * 64), "r"(row), "r"(from + half * 64 * 128)
            : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

DEVICE_FN void wide_activate(const linear_wide &call, const wide_block &b, int group, int tile,
                             const wide_sums &sums)
{
    constexpr int UPS = LINEAR_WIDE_FEATURES / 16; /* where ups begin among the eights of sums */
    int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    uint32_t out = b.out + group * (LINEAR_WIDE_OUT / WIDE_GROUPS);
    uint32_t row = out + (thread / 32 * 16 + g) * 128 + t * 4;
    if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    wide_group_meets(group); /* the tile before has been copied */
#pragma unroll
    for (int i = 0; i < UPS; i++) {
        const float *gate = sums[i], *up = sums[UPS + i];
        uint32_t to = row + i / 8 * 64 * 128 + ((i % 8 ^ g) * 16);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t pair = pack_pair(__nv_bfloat16(), silu(gate[2 * r]) * up[2 * r],
                                      silu(gate[2 * r + 1]) * up[2 * r + 1]);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + r * 8 * 128), "r"(pair) : "memory");
        }
    }
    wgmma_publish();
    wide_group_meets(group); /* all rows are complete */
    if (thread == 0)
        wide_leave(call, out, wide_feature(call, tile), wide_row(call, b, tile) + group * 64);
}

/* ---- rope ---------------------------------------------------------------------------------- */

/* The angles of a head that a lane needs: its pairs are half a head apart, or neighbours. */
template <int HEAD_DIM> struct wide_angles {
    float2 cosine[HEAD_DIM / 16], sine[HEAD_DIM / 16];
};

template <int HEAD_DIM>
DEVICE_FN wide_angles<HEAD_DIM> wide_angles_of(const rope_rows &rope, int64_t token)
{
    const float *row = (const float *)(rope.table + rope.positions[token] * rope.table_stride);
    int t = (int)threadIdx.x % 4;
    wide_angles<HEAD_DIM> angles;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        if (rope.interleaved) {
            const float *first = row + 8 * i + t;
            angles.cosine[i] = make_float2(first[0], first[4]);
            angles.sine[i] = make_float2(first[HEAD_DIM / 2], first[HEAD_DIM / 2 + 4]);
        } else {
            angles.cosine[i] = *(const float2 *)(row + 8 * i + 2 * t);
            angles.sine[i] = *(const float2 *)(row + HEAD_DIM / 2 + 8 * i + 2 * t);
        }
    }
    return angles;
}

/* Rotates a lane's part of its row r of a head, whose eights of sums these are. */
template <int HEAD_DIM>
DEVICE_FN void wide_turn(bool interleaved, const wide_angles<HEAD_DIM> &angles, int r,
                         float (*sums)[4])
{
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        const float2 c = angles.cosine[i], s = angles.sine[i];
        if (interleaved) {
            float *a = &sums[2 * i][2 * r], *b = &sums[2 * i + 1][2 * r];
            rope_pair(&a[0], &a[1], c.x, s.x);
            rope_pair(&b[0], &b[1], c.y, s.y);
        } else {
            float *a = &sums[i][2 * r], *b = &sums[HEAD_DIM / 16 + i][2 * r];
            rope_pair(&a[0], &b[0], c.x, s.x);
            rope_pair(&a[1], &b[1], c.y, s.y);
        }
    }
}

/* Where a warpgroup's rows go in the caches. */
DEVICE_FN void wide_find_places(const append_rows &append, longlong2 *places, int first, int n_rows)
{
    int row = (int)threadIdx.x % 128;
    if (row >= LINEAR_WIDE_ROWS / WIDE_GROUPS || first + row >= n_rows) return;
    kv_place place =
        kv_append_place(append.qo_indptr, append.n_sequences, append.positions, append.kv_indptr,
                        append.kv_indices, append.page_size, first + row);
    places[row] = make_longlong2(place.page * append.k_cache.stride + place.slot * append.k_slot,
                                 place.page * append.v_cache.stride + place.slot * append.v_slot);
}

/* Two sums of a head in its destination's 16 bits; for a cache in FP8 in 8 bits, in the lower half.
 */
DEVICE_FN uint32_t wide_pack2(bool in_f8, int64_t type, float low, float high)
{
    uint16_t pair;
    if (!in_f8) return device_pack2(type, low, high);
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Stores eight numbers of a head from column `at` on; those for a cache in FP8 are in the lower
 * halves of the words. */
DEVICE_FN void wide_store8(bool in_f8, char *to, int at, const uint4 &eight)
{
    if (in_f8)
        *(uint2 *)(to + at) = make_uint2(__byte_perm(eight.x, eight.y, 0x5410),
                                         __byte_perm(eight.z, eight.w, 0x5410));
    else
        *(uint4 *)(to + at * 2) = eight;
}

/* Of 32 of a warpgroup's rows, 8 of each 16 from `first_row` on, copies eights of features from
 * shared memory to q, or to their slots of the caches. */
template <int HEAD_DIM, int FEATURES>
DEVICE_FN void wide_leave_heads(const rope_rows &rope, const append_rows &append, uint32_t from,
                                const longlong2 *places, int feature, int first_row, int r,
                                int n_rows)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x % 128 / WARP;
    int head = (feature + lane * 8) / HEAD_DIM, at = lane * 8 % HEAD_DIM;
    int n_kv_heads = rope.n_heads - rope.n_q_heads, of_k = head - rope.n_q_heads;
    if (of_k >= 2 * n_kv_heads || lane * 8 >= FEATURES) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int row = i / 2 * 16 + r * 8 + i % 2 * 4 + warp; /* of the warpgroup */
        uint32_t place = from + (i * 4 + warp) * 512 + ((lane ^ (i % 2 * 4 + warp)) * 16);
        uint4 eight;
        char *to;
        if (first_row + row >= n_rows) continue;
        if (of_k < 0)
            to = rope.q.data + (first_row + row) * rope.q.stride + head * rope.q_head;
        else if (of_k < n_kv_heads)
            to = append.k_cache.data + places[row].x + of_k * append.k_cache_head;
        else
            to = append.v_cache.data + places[row].y + (of_k - n_kv_heads) * append.v_cache_head;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                     : "r"(place)
                     : "memory");
        wide_store8(of_k >= 0 && append.k_cache.type == DTYPE_F8, to, at, eight);
    }
}

template <int HEAD_DIM, int FEATURES>
DEVICE_FN void wide_turn_heads(const linear_wide &call, const rope_rows &rope,
                               const append_rows &append, const wide_block &b, int group, int tile,
                               typename wide_sums_of<FEATURES>::type &sums)
{
    int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    int feature = wide_feature(call, tile), row = wide_row(call, b, tile) + group * 64;
    uint32_t out = b.out + group * (LINEAR_WIDE_OUT / WIDE_GROUPS);
    uint32_t own = out + (thread / 32 * 8 + g) * 512 + t * 4;
    longlong2 *places = b.places + group * (LINEAR_WIDE_ROWS / WIDE_GROUPS);
    const bool in_f8 = append.k_cache.type == DTYPE_F8;
    if (feature + FEATURES > rope.n_q_heads * HEAD_DIM) {
        wide_group_meets(group); /* the places of the tile before are no longer needed */
        wide_find_places(append, places, row, call.n_rows);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int token = min(row + thread / 32 * 16 + g + 8 * r, call.n_rows - 1);
        wide_angles<HEAD_DIM> angles = wide_angles_of<HEAD_DIM>(rope, token);
#pragma unroll
        for (int h = 0; h < FEATURES / HEAD_DIM; h++)
            if (feature / HEAD_DIM + h < rope.n_heads)
                wide_turn<HEAD_DIM>(rope.interleaved, angles, r, sums + h * HEAD_DIM / 8);
        wide_group_meets(group); /* what was there has been copied */
#pragma unroll
        for (int i = 0; i < FEATURES / 8; i++)
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(own + (i ^ g) * 16),
                         "r"(wide_pack2(in_f8 && feature + i * 8 >= rope.n_q_heads * HEAD_DIM,
                                        rope.q.type, sums[i][2 * r], sums[i][2 * r + 1]))
                         : "memory");
        wide_group_meets(group); /* the rows are complete */
        wide_leave_heads<HEAD_DIM, FEATURES>(rope, append, out, places, feature, row, r,
                                             call.n_rows);
    }
}

/* ---- the likeliest feature ----------------------------------------------------------------- */

/* The order is that of op/argmax: see chain_likeliest.cuh. */

/* Merges the best of a tile's features for each of its rows into those of all tiles. */
DEVICE_FN void wide_rank(const linear_wide &call, const wide_likeliest &to, const wide_block &b,
                         int group, int tile, const wide_sums &sums)
{
    int thread = (int)threadIdx.x % 128, g = thread % 32 / 4, t = thread % 4;
    int row = wide_row(call, b, tile) + group * 64 + thread / 32 * 16 + g;
    int first = wide_feature(call, tile) + 2 * t;
    uint64_t key[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float best = -CUDART_INF_F;
        int at = first;
#pragma unroll
        for (int i = 0; i < LINEAR_WIDE_FEATURES / 4; i++) {
            float value = sums[i / 2][2 * r + i % 2];
            int feature = first + i / 2 * 8 + i % 2;
            if (value > best && feature < to.n_features) best = value, at = feature;
        }
        key[r] = at < to.n_features ? likeliest_key(best, at) : 0;
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            key[r] = max(key[r], __shfl_xor_sync(ALL_LANES, key[r], step));
    }
    if (t < 2 && row + 8 * t < call.n_rows)
        atomicMax((unsigned long long *)to.best + row + 8 * t, t == 0 ? key[0] : key[1]);
}

/* The threads that multiply, of the last block to end: turns keys into features. */
DEVICE_FN void wide_leave_likeliest(const linear_wide &call, const wide_likeliest &to,
                                    uint32_t *is_last)
{
    constexpr int THREADS = WIDE_GROUPS * 128;
    int thread = (int)threadIdx.x - 128;
    __threadfence();
    asm volatile("bar.sync 3, %0;" ::"n"(THREADS) : "memory"); /* all rows are merged */
    if (thread == 0) *is_last = atomicInc(to.ended, gridDim.x - 1) == gridDim.x - 1;
    asm volatile("bar.sync 3, %0;" ::"n"(THREADS) : "memory");
    if (!*is_last) return;
    __threadfence();
    for (int row = thread; row < call.n_rows; row += THREADS) {
        to.ids[row] = likeliest_feature(__ldcg(to.best + row));
        to.best[row] = 0;
    }
}

/* ---- a block ------------------------------------------------------------------------------- */

DEVICE_FN void wide_begin(const linear_wide &call, const wide_block &b)
{
    for (int s = 0; s < LINEAR_WIDE_STAGES; s++) {
        barrier_init(b.full + 8 * s, 1);
        barrier_init(b.empty + 8 * s, LINEAR_WIDE_BLOCKS * WIDE_GROUPS);
    }
    asm volatile("prefetch.tensormap [%0];" ::"l"(&call.x_map));
    asm volatile("prefetch.tensormap [%0];" ::"l"(&call.weight_map));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

struct wide_no_last {
    DEVICE_METHOD void operator()(const wide_block &) const {}
};

/* `end(block, group, tile, sums)`: the epilogue of a tile; `last(block)`: of all tiles. */
template <int FEATURES = LINEAR_WIDE_FEATURES, typename END, typename LAST = wide_no_last>
DEVICE_FN void linear_wide_run(const linear_wide &call, char *shared, const END &end,
                               const LAST &last = LAST())
{
    wide_block b;
    b.stages = (uint32_t)__cvta_generic_to_shared(shared);
    b.out = b.stages + LINEAR_WIDE_STAGES * LINEAR_WIDE_STAGE;
    b.places = (longlong2 *)(shared + (b.out - b.stages) + LINEAR_WIDE_OUT);
    b.full = b.out + LINEAR_WIDE_OUT + LINEAR_WIDE_PLACES;
    b.empty = b.full + LINEAR_WIDE_STAGES * 8;
    b.rank = (int)blockIdx.x % LINEAR_WIDE_BLOCKS;
    b.cluster = (int)blockIdx.x / LINEAR_WIDE_BLOCKS;
    b.n_clusters = (int)gridDim.x / LINEAR_WIDE_BLOCKS;
    int group = (int)threadIdx.x / 128 - 1; /* -1: the producer */
    if (threadIdx.x == 0) wide_begin(call, b);
    device_let_next_begin();
    wide_cluster_meet(); /* both blocks' mbarriers are initialised */
    device_wait_for_last();
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) wide_fetch_all<FEATURES>(call, b);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        wide_ring ring = {0, 0};
        typename wide_sums_of<FEATURES>::type sums;
        for (int tile = b.cluster; tile < call.tiles; tile += b.n_clusters) {
            wide_multiply<FEATURES>(call, b, group, ring, sums);
            end(b, group, tile, sums);
        }
        if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        last(b);
    }
    __syncwarp();
    wide_cluster_meet(); /* no block copies or arrives here any more */
}
