/* x of several rows: how blocks add to the residual, how its columns are published to all blocks,
 * and how a warp brings its columns of all rows into registers, in the tensor cores' order.
 */
#pragma once

#include "vm/mega/batch_fragments.h"
#include "vm/mega/block.cuh"

enum {
    PUBLISHED_EACH = MEGA_PUBLISHED_COLUMNS * MEGA_ROWS / MEGA_PUBLISHERS
}; /* elements of a publishing thread */

/* BLOCKS: blocks of 2,048 columns in a row of weights. */
template <int BLOCKS> struct batch_shape {
    enum {
        ROWS = MEGA_QUANT_TYPES ? (int)MEGA_ROWS : MEGA_ROWS / BLOCKS, /* of x */
        /* Of eight rows of weights, multiplied at once. */
        TILES = MEGA_QUANT_TYPES ? 2 * (int)FRAGMENT_TURN_TILES : 2 / BLOCKS,
        SUMS = TILES * (int)MEGA_TILE * ROWS,   /* that a warp has then */
        HALF = BLOCKS > 1 ? 4 : (int)MEGA_TILE, /* rows of weights in a chunk */
    };
};

/* ---- the residual ---- */

/* The residual of several sequences is [column / 2][sequence][column % 2]. Blocks add to sums that
 * count their parts. The publishing threads of a block own a share of the residual: they add each
 * step's sums to it when those are complete, and publish it to all blocks in float32, which is half
 * of what each block would read otherwise. */
MEGA_FN size_t residual_step(const mega_arguments &a, int step)
{
    return (size_t)step * a.hidden * MEGA_ROWS;
}
MEGA_FN size_t residual_pass(const mega_arguments &a, uint32_t pass)
{
    return (pass & 1) * residual_step(a, 2 * a.n_layers + 1);
}
MEGA_FN int64_t *batch_sums(const mega_arguments &a, uint32_t pass, int step)
{
    return (int64_t *)a.x + residual_pass(a, pass) + residual_step(a, step);
}
enum : uint32_t { NOT_PUBLISHED = 0xffffffff }; /* the bits of a NaN */
MEGA_FN uint32_t *batch_published(const mega_arguments &a, uint32_t pass, int step)
{
    return (uint32_t *)a.published + residual_pass(a, pass) + residual_step(a, step);
}
MEGA_FN int residual_place(int column, int row)
{
    return (column >> 1) * 2 * MEGA_ROWS + 2 * row + (column & 1);
}

/* Layout of the published residual: the columns that one instruction of the tensor cores
 * multiplies, of all rows: four of each eight, or with fragments 16 neighbours. */
MEGA_FN int published_place(int column, int row)
{
    if (MEGA_QUANT_TYPES) return (column >> 4) * 16 * MEGA_ROWS + 16 * row + (column & 15);
    int step = (column >> 5) * 2 + (column >> 2 & 1);
    return step * 16 * MEGA_ROWS + 16 * row + 4 * (column >> 3 & 3) + (column & 3);
}

/* Where a column is in a row of planes in shared memory. With fragments a lane's four columns of 16
 * are the first and third, then the second and fourth, of an instruction (batch_numbers.cuh). */
MEGA_FN int plane_place(int column)
{
    if (!MEGA_QUANT_TYPES) return column;
    return (column & ~15) + 8 * (column & 1) + (column >> 2 & 3) * 2 + (column >> 1 & 1);
}

/* How many parts a sum has: the embedding's row, then one of each KV head or each block, because
 * every block has one entry per step. */
MEGA_FN uint32_t batch_parts(const mega_arguments &a, int step)
{
    return step == 0 ? 1 : step & 1 ? a.n_kv_heads : gridDim.x;
}

/* A sum without its count, which is in the high word. */
MEGA_FN int64_t uncounted(int64_t sum, uint32_t parts)
{
    uint32_t high = (uint32_t)((uint64_t)sum >> 32) - (parts << (FIXED_COUNT_AT - 32));
    return (int64_t)((uint64_t)high << 32 | (uint32_t)sum);
}

/* Element i of the publishing threads: the first column of the block's share for all rows, then the
 * next columns. False: there is none, and *place and *to are those of the first. */
MEGA_FN bool published_element(const mega_arguments &a, int i, int *place, int *to)
{
    int begin = a.hidden * (int)blockIdx.x / (int)gridDim.x;
    int end = a.hidden * (int)(blockIdx.x + 1) / (int)gridDim.x;
    int column = begin + i / MEGA_ROWS, row = i % MEGA_ROWS;
    bool there = column < end && row < a.n_rows;
    *place = residual_place(there ? column : begin, there ? row : 0);
    *to = published_place(there ? column : begin, there ? row : 0);
    return there;
}

/* Signals that the block has added its parts to a step's sums, or nearly all of them: its
 * publishing threads may begin to poll. A block has one entry per step. */
MEGA_FN void signal_added(const mega_arguments &a, const mega_block &b)
{
    if (b.thread == 0) barrier_arrive(b.own + a.shared.flow + FLOW_ADDED);
}

/* What the publishing threads do. `flow`: address of the block's mega_flow. They poll only when the
 * block itself has added its parts, because polling sums that will stay incomplete for long takes
 * L2 bandwidth from others. The consumer warps watch the time.
 *
 * A block goes on to the next step only when all of this step is published, so a publishing warp is
 * at most one phase later than its block, which is what an mbarrier can distinguish. The lanes of a
 * warp stay together.
 */
MEGA_FN void publish_residual(const mega_arguments &a, uint32_t flow, int publisher)
{
    int64_t whole[PUBLISHED_EACH];
    int places[PUBLISHED_EACH], tos[PUBLISHED_EACH];
    bool there[PUBLISHED_EACH];
    bool any = false;
#pragma unroll
    for (int i = 0; i < PUBLISHED_EACH; i++) {
        there[i] = published_element(a, i * MEGA_PUBLISHERS + publisher, &places[i], &tos[i]);
        any = any || there[i];
    }
    /* A warp without elements might be late by more than a phase. */
    if (!__any_sync(~0u, any)) return;
    uint32_t phase = 0;
#pragma unroll 1
    for (int n = 0; n < a.n_passes; n++) {
        uint32_t pass = a.first_pass + n;
        barrier_wait(flow + FLOW_BEGUN, n & 1);
#pragma unroll
        for (int i = 0; i < PUBLISHED_EACH; i++)
            whole[i] = 0;
#pragma unroll 1
        for (int step = 0; step <= 2 * a.n_layers; step++, phase ^= 1) {
            uint32_t parts = batch_parts(a, step), wrong;
            const int64_t *sums = batch_sums(a, pass, step);
            int64_t sum[PUBLISHED_EACH];
            if (MEGA_DELAYS) delay_warp(a, pass, step);
            barrier_wait(flow + FLOW_ADDED, phase);
            __syncwarp();
            do {
                wrong = 0;
#pragma unroll
                for (int i = 0; i < PUBLISHED_EACH; i++)
                    sum[i] = load_relaxed(sums + places[i]);
#pragma unroll
                for (int i = 0; i < PUBLISHED_EACH; i++)
                    wrong |= fixed_count(sum[i]) ^ parts;
            } while (wrong);
            uint32_t *published = batch_published(a, pass, step);
#pragma unroll
            for (int i = 0; i < PUBLISHED_EACH; i++) {
                whole[i] += uncounted(sum[i], parts);
                float x = (float)whole[i] * (1 / FIXED_ONE);
                if (there[i]) store_relaxed_4(published + tos[i], __float_as_uint(x));
            }
        }
    }
}

/* The first of a warp's columns in a block of columns; hidden is a multiple of 64. */
MEGA_FN int first_column(const mega_arguments &a, const mega_block &b, int block)
{
    return min(block * MEGA_COLUMNS + b.warp * 128, a.hidden - 64);
}

/* Where the norm's weight for this warp's columns of a block is: where the warp's own sums will be;
 * or after all sums, which results overwrite when all warps have read their weights. */
template <int BLOCKS>
MEGA_FN uint32_t norm_place(const mega_arguments &a, const mega_block &b, int block)
{
    const int each = 4 * batch_shape<BLOCKS>::SUMS, sums = 2 * MEGA_WARPS * each;
    return b.own + a.shared.sums +
           (BLOCKS > 1 ? sums + 512 * (b.warp * BLOCKS + block) : each * b.warp);
}

/* Copies it there. */
template <int BLOCKS>
MEGA_FN void fetch_norm(const mega_arguments &a, const mega_block &b, const mega_entry &e,
                        int first_block)
{
    int size = e.weights.norm_is_f32 ? 4 : 2;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        int first = first_column(a, b, first_block + block),
            bytes = min(128, a.hidden - first) * size;
        uint32_t to = norm_place<BLOCKS>(a, b, block) + 16 * b.lane;
        if (16 * b.lane < bytes)
            copy_16(to, (const char *)e.weights.norm + first * size + 16 * b.lane);
    }
}
/* Pairs of it, F32 or the weights' type without a branch. */
struct norm_pairs {
    uint32_t at, size, second, shift, mask;
    MEGA_FN norm_pairs(uint32_t place, bool f32)
    {
        at = place;
        size = f32 ? 8 : 4;
        second = f32 ? 4 : 0; /* the pair's second number: after the first, or the upper half */
        shift = f32 ? 0 : 16;
        mask = f32 ? ~0u : 0xffff0000;
    }
    MEGA_FN float2 operator[](int pair) const
    {
        uint32_t v = load_shared(at + pair * size), w = load_shared(at + pair * size + second);
#if MEGA_HALF
        float2 both = __half22float2(*(const __half2 *)&v);
        return shift ? both : make_float2(__uint_as_float(v), __uint_as_float(w));
#else
        return make_float2(__uint_as_float(v << shift), __uint_as_float(w & mask));
#endif
    }
};

/* Splits two float32 into three pairs of the weights' type; BF16: exactly. As split_float() does.
 */
MEGA_FN void split_pair(float v, float w, uint32_t *to, int step)
{
#pragma unroll
    for (int p = 0; p < MEGA_PARTS; p++) {
#if MEGA_HALF
        __half2 pair = __floats2half2_rn(v * plane_factor(p), w * plane_factor(p));
        float2 taken = __half22float2(pair);
        to[p * step] = *(const uint32_t *)&pair;
        v -= taken.x * (1 / plane_factor(p));
        w -= taken.y * (1 / plane_factor(p));
#else
        __nv_bfloat162 pair = __floats2bfloat162_rn(v, w);
        uint32_t bits = *(const uint32_t *)&pair;
        to[p * step] = bits;
        v -= __uint_as_float(bits << 16);
        w -= __uint_as_float(bits & 0xffff0000);
#endif
    }
}

/* Polls two elements until they are there, as wait_residual() does, because polling more slows
 * other blocks down. */
MEGA_FN void wait_last(const mega_arguments &a, const mega_block &b, const instruction &in,
                       const uint32_t *x, bool whole)
{
    x += published_place((whole ? 64 : 32) * (1 + (b.lane & 1)) - 1, a.n_rows - 1);
    watchdog watchdog = {0, 0};
    for (;;) {
        bool there = load_relaxed_4(x) != NOT_PUBLISHED;
        if (__all_sync(~0u, there) || !MEGA_WAITS) return;
        __nanosleep(60);
        if (watchdog.expired() && !there) mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_X, 1, 0);
    }
}

/* Loads this lane's columns of its row, eight of each 32, when they are published; only half of
 * them if `whole` is false. */
MEGA_FN void load_columns(const mega_arguments &a, const mega_block &b, const instruction &in,
                          const uint32_t *x, bool whole, float2 *out)
{
    const uint32_t *second = x + (whole ? published_place(64, 0) : 0);
    watchdog watchdog = {0, 0};
    for (;;) {
#pragma unroll
        for (int i = 0; i < 16; i += 2)
            load_relaxed_16((i < 8 ? x : second) + i % 8 * 8 * MEGA_ROWS, out + i);
        /* NaN if one of them is, because none is near infinity. */
        float sums[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 16; i++)
            sums[i % 4] += out[i].x + out[i].y;
        bool there = !isnan((sums[0] + sums[1]) + (sums[2] + sums[3]));
        if (__all_sync(~0u, there) || !MEGA_WAITS) return;
        if (watchdog.expired() && b.lane == 0)
            mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_X, 1, 0);
    }
}

/* x times the norm's weight in registers: planes[j][p] is 16 columns of part p in the tensor cores'
 * order. Stores each row's parts of the sum of squares, added in read_residual()'s order. Lanes
 * without a row or columns load others' and do not use them. */
template <int BLOCKS>
MEGA_FN void read_batch(const mega_arguments &a, mega_block &b, const mega_entry &e, int step,
                        uint32_t (*planes)[MEGA_PARTS][2], int first_block = 0)
{
    const int rows = batch_shape<BLOCKS>::ROWS, g = b.lane >> 2, t = b.lane & 3;
    const int row = g % rows, block = BLOCKS > 1 ? g / rows : first_block;
    int first = first_column(a, b, block);
    const bool there = block * MEGA_COLUMNS + b.warp * 128 < a.hidden;
    bool used = row < a.n_rows && there, whole = first + 128 <= a.hidden;
    const uint32_t *x = batch_published(a, b.pass(), step) + published_place(first, 0);
    fetch_norm<BLOCKS>(a, b, e, first_block);
    copies_commit();
    wait_last(a, b, e.in, x, whole);
    float2 raw[16];
    const int each = MEGA_QUANT_TYPES ? 4 : 8; /* neighbouring columns of a lane */
    load_columns(a, b, e.in, x + published_place(each * t, used ? row : 0), whole, raw);
    copies_arrived<0>();
    __syncwarp();
    /* No branches: columns that are not there are multiplied by 0. */
    norm_pairs norm(norm_place<BLOCKS>(a, b, block - first_block), e.weights.norm_is_f32);
    float scales[2] = {there ? 1.f : 0.f, whole ? 1.f : 0.f};
    int pair = each / 2 * t, later = whole ? 0 : 32;
    /* Of four neighbours each: even and odd ones of the first 32 columns, then of 64. */
    float sums[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float square = 0;
        float2 scaled[2];
#pragma unroll
        for (int i = 2 * j; i < 2 * j + 2; i++) {
            const int further = MEGA_QUANT_TYPES ? 8 * j + (i & 1) : j / 2 * 16 + i % 4;
            float2 w = norm[pair + further - (i < 8 ? 0 : later)];
            float v0 = raw[i].x * scales[i / 8], v1 = raw[i].y * scales[i / 8];
            square = fmaf(v1, v1, fmaf(v0, v0, square));
            scaled[i & 1] = make_float2(__fmul_rn(v0, w.x), __fmul_rn(v1, w.y));
            if (!MEGA_QUANT_TYPES)
                split_pair(scaled[i & 1].x, scaled[i & 1].y, &planes[j][0][i & 1], 2);
        }
        if (MEGA_QUANT_TYPES) {
            split_pair(scaled[0].x, scaled[1].x, &planes[j][0][0], 2);
            split_pair(scaled[0].y, scaled[1].y, &planes[j][0][1], 2);
        }
        if (BLOCKS > 1) {
            /* Lanes of the second block go on from the first one's sum. */
            square = __shfl_xor_sync(~0u, square, 16);
#pragma unroll
            for (int i = 2 * j; i < 2 * j + 2; i++) {
                float v0 = raw[i].x * scales[i / 8], v1 = raw[i].y * scales[i / 8];
                square = fmaf(v1, v1, fmaf(v0, v0, square));
            }
        }
        sums[j & 3] = j < 4 ? square : sums[j & 3] + square;
    }
    float pairs[2] = {sums[0] + sums[2], sums[1] + sums[3]};
#pragma unroll
    for (int o = 2; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < 2; i++)
            pairs[i] += __shfl_xor_sync(~0u, pairs[i], o);
    float *squares = b.at<float>(a.shared.squares) + b.warp * MEGA_ROWS + row;
    if (t == 0 && block - first_block == BLOCKS - 1)
        *squares = first_block ? *squares + (pairs[0] + pairs[1]) : pairs[0] + pairs[1];
    b.stamp(a, MEGA_WORKS);
}

/* The sum of 16 values in order, or as eight lanes add them. */
MEGA_FN float add_sixteen(const float *v, bool in_order)
{
    static_assert(MEGA_WARPS == 16, "one a warp");
    float sum = 0, pairs[8];
    if (in_order) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            sum += v[i];
        return sum;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        pairs[i] = v[i] + v[i + 8];
#pragma unroll
    for (int o = 4; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < o; i++)
            pairs[i] += pairs[i + o];
    return pairs[0];
}

/* Of row `row` of x: as inverse_rms() (in_order) or inverse_rms_by_eight() computes it. */
MEGA_FN float batch_inverse_rms(const mega_arguments &a, const mega_block &b, int row,
                                bool in_order)
{
    const float *squares = b.at<float>(a.shared.squares) + row;
    float v[MEGA_WARPS];
#pragma unroll
    for (int i = 0; i < MEGA_WARPS; i++)
        v[i] = squares[i * MEGA_ROWS];
    return rsqrtf(add_sixteen(v, in_order) / (float)a.hidden + a.eps);
}
