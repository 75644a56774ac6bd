/* Weights times the vectors of up to eight sequences, on the tensor cores.
 *
 * The same as product.cuh for one sequence, to the same bits: a sequence is a column of the other
 * operand, its three BF16 planes are three products, and every sum is made in the same order. x
 * does not go through shared memory: each warp keeps the 128 columns that it multiplies, of all
 * rows of x, in registers.
 */
#ifndef QUIPU_VM_MEGA_BATCH_PRODUCT_CUH
#define QUIPU_VM_MEGA_BATCH_PRODUCT_CUH

#include "vm/mega/block.cuh"

enum {
    PUBLISHED_EACH = MEGA_PUBLISHED_COLUMNS * MEGA_ROWS / MEGA_PUBLISHERS
}; /* elements of a publishing thread */

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
 * multiplies, four of each eight, of all rows. */
MEGA_FN int published_place(int column, int row)
{
    int step = (column >> 5) * 2 + (column >> 2 & 1);
    return step * 16 * MEGA_ROWS + 16 * row + 4 * (column >> 3 & 3) + (column & 3);
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
 * at most one phase behind its block, which is what an mbarrier can distinguish. The lanes of a
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
    /* A warp without elements might fall more than a phase behind. */
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

/* Copies the norm's weight for this warp's columns to where its sums will be. */
MEGA_FN void fetch_norm(const mega_arguments &a, const mega_block &b, const mega_entry &e,
                        int first)
{
    int size = e.weights.norm_is_f32 ? 4 : 2, bytes = min(128, a.hidden - first) * size;
    uint32_t to = b.own + a.shared.sums + 512 * b.warp + 16 * b.lane;
    if (16 * b.lane < bytes) copy_16(to, (const char *)e.weights.norm + first * size + 16 * b.lane);
}
/* Pairs of it, F32 or BF16 without a branch. */
struct norm_pairs {
    uint32_t at, size, second, shift, mask;
    MEGA_FN norm_pairs(const mega_block &b, const mega_arguments &a, bool f32)
    {
        at = b.own + a.shared.sums + 512 * b.warp;
        size = f32 ? 8 : 4;
        second = f32 ? 4 : 0; /* the pair's second number: after the first, or the upper half */
        shift = f32 ? 0 : 16;
        mask = f32 ? ~0u : 0xffff0000;
    }
    MEGA_FN float2 operator[](int pair) const
    {
        uint32_t v = load_shared(at + pair * size), w = load_shared(at + pair * size + second);
        return make_float2(__uint_as_float(v << shift), __uint_as_float(w & mask));
    }
};

/* Splits two float32 into three pairs of BF16, exactly. */
MEGA_FN void split_pair(float v, float w, uint32_t *to, int step)
{
#pragma unroll
    for (int p = 0; p < MEGA_PARTS; p++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(v, w);
        uint32_t bits = *(const uint32_t *)&pair;
        to[p * step] = bits;
        v -= __uint_as_float(bits << 16);
        w -= __uint_as_float(bits & 0xffff0000);
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
MEGA_FN void read_batch(const mega_arguments &a, mega_block &b, const mega_entry &e, int step,
                        uint32_t (*planes)[MEGA_PARTS][2])
{
    int g = b.lane >> 2, t = b.lane & 3;
    int first = min(b.warp * 128, a.hidden - 64); /* hidden is a multiple of 64 */
    bool used = g < a.n_rows && b.warp * 128 < a.hidden, whole = first + 128 <= a.hidden;
    const uint32_t *x = batch_published(a, b.pass(), step) + published_place(first, 0);
    fetch_norm(a, b, e, first);
    copies_commit();
    wait_last(a, b, e.in, x, whole);
    float2 raw[16];
    load_columns(a, b, e.in, x + published_place(8 * t, used ? g : 0), whole, raw);
    copies_arrived<0>();
    __syncwarp();
    /* No branches: columns that are not there are multiplied by 0. */
    norm_pairs norm(b, a, e.weights.norm_is_f32);
    float scales[2] = {b.warp * 128 < a.hidden ? 1.f : 0.f, whole ? 1.f : 0.f};
    int pair = 4 * t, later = whole ? 0 : 32;
    /* Of four neighbours each: even and odd ones of the first 32 columns, then of 64. */
    float sums[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float square = 0;
#pragma unroll
        for (int i = 2 * j; i < 2 * j + 2; i++) {
            float2 w = norm[pair + j / 2 * 16 + i % 4 - (i < 8 ? 0 : later)];
            float v0 = raw[i].x * scales[i / 8], v1 = raw[i].y * scales[i / 8];
            square = fmaf(v1, v1, fmaf(v0, v0, square));
            split_pair(__fmul_rn(v0, w.x), __fmul_rn(v1, w.y), &planes[j][0][i & 1], 2);
        }
        sums[j & 3] = j < 4 ? square : sums[j & 3] + square;
    }
    float pairs[2] = {sums[0] + sums[2], sums[1] + sums[3]};
#pragma unroll
    for (int o = 2; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < 2; i++)
            pairs[i] += __shfl_xor_sync(~0u, pairs[i], o);
    if (t == 0) b.at<float>(a.shared.squares)[b.warp * MEGA_ROWS + g] = pairs[0] + pairs[1];
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

/* ---- rows times x ---- */

/* Adds the accumulators of the three parts in the order of one vector's. */
MEGA_FN float sum_parts(const float (*c)[4], const float (*d)[4], int i)
{
    return ((c[0][i] + d[0][i]) + (c[1][i] + d[1][i])) + (c[2][i] + d[2][i]);
}

/* Four warps, by turns, add up all warps' sums of 16 rows, in the order of one vector's, and store
 * results[row of x][first + row]. */
MEGA_FN void add_warps(const mega_arguments &a, const mega_block &b, int turn, int first, int rows,
                       bool in_order)
{
    if ((b.warp >> 2) != (turn & 3)) return;
    int i = b.thread & 127, row = i / MEGA_ROWS;
    uint32_t sums = b.own + a.shared.sums + 4 * ((turn & 1) * 128 * MEGA_WARPS + i);
    uint32_t to = a.shared.results + 4 * (i % MEGA_ROWS * a.shared.result_pitch + first + row);
    float v[MEGA_WARPS];
#pragma unroll
    for (int w = 0; w < MEGA_WARPS; w++)
        v[w] = __uint_as_float(load_shared(sums + 4 * 128 * w));
    if (row < rows) store_shared(b.own + to, add_sixteen(v, in_order));
}

/* `tiles` tiles of 8 rows from the ring, two at a time, times x: results[row of x][first + row].
 * `turn` counts pairs of tiles; there are two buffers of sums. Called in one place, as
 * multiply_rows() is. Computes addresses anew for each pair, because x leaves no registers for
 * them. */
MEGA_FN void multiply_batch(const mega_arguments &a, mega_block &b,
                            const uint32_t (*x)[MEGA_PARTS][2], int tiles, int first, bool in_order,
                            int &turn)
{
#pragma unroll 1
    for (int i = 0; i < tiles; i += 2, turn++) {
        b.reload();
        float c[MEGA_PARTS][4], d[MEGA_PARTS][4];
#pragma unroll
        for (int p = 0; p < 4 * MEGA_PARTS; p++)
            c[p / 4][p % 4] = d[p / 4][p % 4] = 0;
        bool both = i + 1 < tiles;
        ring_place one = b.place;
        if (both) b.place.advance(a.stages);
        uint32_t full = b.own + a.shared.full;
        wait_chunk(full + 8 * one.stage, one.parity);
        if (both) wait_chunk(full + 8 * b.place.stage, b.place.parity);
        /* In row_fragments' order. Its way round bank conflicts needs registers that are not there,
         * so rows are apart instead. */
        uint32_t mine =
            b.ring + (b.lane >> 2) * MEGA_BATCH_PITCH + b.warp * 256 + (b.lane & 3) * 16;
        uint32_t at[2] = {mine + one.stage * MEGA_STAGE,
                          mine + (both ? b.place.stage : one.stage) * MEGA_STAGE};
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint4 m = load_shared_16(at[0] + j * 32), n = load_shared_16(at[1] + j * 32);
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                multiply(c[p], m.x, n.x, m.y, n.y, x[j][p][0], x[j][p][1]);
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                multiply(d[p], m.z, n.z, m.w, n.w, x[j + 1][p][0], x[j + 1][p][1]);
        }
        __syncwarp();
        uint32_t empty = b.own + a.shared.empty;
        if (signals(b)) barrier_arrive(empty + 8 * one.stage);
        if (signals(b) && both) barrier_arrive(empty + 8 * b.place.stage);
        b.place.advance(a.stages);
        b.reload();
        int g = b.lane >> 2, t = b.lane & 3;
        uint32_t to = b.own + a.shared.sums +
                      4 * (((turn & 1) * MEGA_WARPS + b.warp) * 128 + g * MEGA_ROWS + 2 * t);
        store_shared_two(to, sum_parts(c, d, 0), sum_parts(c, d, 1));
        store_shared_two(to + 4 * 8 * MEGA_ROWS, sum_parts(c, d, 2), sum_parts(c, d, 3));
        b.sync();
        add_warps(a, b, turn, first + i * MEGA_TILE, both ? 2 * MEGA_TILE : MEGA_TILE, in_order);
    }
}

/* ---- W_down ---- */

/* Adds 16 columns of all rows in fixed point. Of each eight columns a lane has column g of rows 2 t
 * and 2 t + 1; half the lanes exchange one so that a store's addresses are contiguous. */
MEGA_FN void sum_outputs(const mega_block &b, const float (*c)[4], int64_t *sums)
{
    bool low = b.lane < 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float own[2];
#pragma unroll
        for (int r = 0; r < 2; r++)
            own[r] = c[0][2 * i + r] + c[1][2 * i + r] + c[2][2 * i + r];
        float other = __shfl_xor_sync(~0u, own[1], 16);
        sums[2 * i] += fixed_part(low ? own[0] : other);
        sums[2 * i + 1] += fixed_part(low ? other : own[0]);
    }
}
MEGA_FN void add_outputs(const mega_arguments &a, const mega_block &b, int64_t *next, int column,
                         bool inside, const int64_t *sums)
{
    int g = b.lane >> 2, t = b.lane & 3;
    bool low = b.lane < 16;
    int rows[2] = {2 * t + !low, 2 * t + low};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int place = residual_place(column + 8 * (i / 2) + (g & 3) + 4 * (i % 2), rows[i % 2]);
        add_relaxed_if(inside && rows[i % 2] < a.n_rows, next + place, sums[i]);
    }
}

/* The chunk of W_down^T in a turn: some groups of 64 columns, of which a box has all features of
 * one block. Groups of blocks begin elsewhere in their shares, so that not all add to the same
 * places at the same time. */
MEGA_FN int down_chunk(const mega_arguments &a, const mega_entry &e, mega_turn turn)
{
    int i = turn.share + e.weights.down_shift;
    return e.weights.down_first + (i < a.down_share ? i : i - a.down_share);
}

/* Offset of the planes of a block's features: peer 0 is this block. */
MEGA_FN uint32_t feature_planes(const mega_arguments &a, int peer)
{
    uint32_t bytes = 2 * MEGA_PARTS * a.shared.feature_plane;
    return peer ? a.shared.sums + (peer - 1) * bytes : a.shared.features;
}
/* A row of x's features for the peers. A word has three planes and the low 16 bits of the number of
 * pass and layer. All rows are written in every layer, so an old number is never taken for a new
 * one. */
MEGA_FN int64_t *feature_list(const mega_arguments &a, int row)
{
    return (int64_t *)a.features + (int64_t)row * a.n_features;
}
MEGA_FN int64_t tagged_feature(const uint16_t *parts, uint32_t tag)
{
    static_assert(MEGA_PARTS == 3, "and the number is the fourth");
    uint32_t low = parts[0] | (uint32_t)parts[1] << 16, high = parts[2] | tag << 16;
    return (int64_t)((uint64_t)high << 32 | low);
}

/* Waits for the peers' features of all rows and stores them as planes where sums were. Two warps
 * have a row; loads of all peers are in flight together. */
MEGA_FN void wait_peers(const mega_arguments &a, mega_block &b, const mega_entry &e, uint32_t tag)
{
    static_assert(MEGA_WARPS == 2 * MEGA_ROWS, "two warps a row");
    int row = b.warp / 2, padded = (int)a.shared.feature_row - MEGA_TILE;
    const int64_t *list = feature_list(a, row);
#pragma unroll 1
    for (int i = b.thread & 63; i < padded; i += 64) {
        int64_t v[MEGA_PEERS - 1];
        watchdog watchdog = {0, 0};
        for (;;) {
            uint32_t wrong = 0;
#pragma unroll
            for (int k = 0; k < MEGA_PEERS - 1; k++) {
                instruction_span of = e.weights.peers[k + 1 < a.peers ? k : 0];
                v[k] = load_relaxed(list + of.begin + (of.begin + i < of.end ? i : 0));
            }
#pragma unroll
            for (int k = 0; k < MEGA_PEERS - 1; k++)
                wrong |= (uint32_t)((uint64_t)v[k] >> 48) ^ (tag & 0xffff);
            if (!wrong || !MEGA_WAITS) break;
            if (watchdog.expired())
                mega_stuck(a, e.in, b.entry(), b.pass(), MEGA_WAIT_FEATURES, tag & 0xffff,
                           (uint32_t)((uint64_t)v[0] >> 48));
        }
#pragma unroll
        for (int k = 0; k < MEGA_PEERS - 1; k++) {
            if (k + 1 >= a.peers) break;
            instruction_span of = e.weights.peers[k];
            bool there = of.begin + i < of.end;
            uint16_t *planes =
                b.at<uint16_t>(feature_planes(a, k + 1)) + row * a.shared.feature_row;
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                planes[i + p * a.shared.feature_plane] =
                    there ? (uint16_t)((uint64_t)v[k] >> 16 * p) : 0;
        }
    }
    b.sync();
}

/* 32 columns of a chunk of W_down^T times features. `at`: this lane's place in the ring. Planes are
 * zero after the last feature, up to a multiple of MEGA_FEATURES. */
MEGA_FN void multiply_down(const mega_arguments &a, const mega_block &b, uint32_t at,
                           uint32_t planes, float (*c)[MEGA_PARTS][4])
{
    uint32_t from =
        b.own + planes + 2 * ((b.lane & 7) * a.shared.feature_row + MEGA_TILE * (b.lane >> 3));
#pragma unroll
    for (int i = 0; i < 2 * MEGA_PARTS * 4; i++)
        c[i / (MEGA_PARTS * 4)][i / 4 % MEGA_PARTS][i % 4] = 0;
    static_assert(MEGA_FEATURES == 4 * MEGA_TILE, "four matrices at once");
#pragma unroll 1
    for (int first = 0; first < (int)a.shared.feature_row - MEGA_TILE; first += MEGA_FEATURES) {
        uint32_t features[MEGA_PARTS][4];
#pragma unroll
        for (int p = 0; p < MEGA_PARTS; p++)
            load_matrices(features[p], from + 2 * (p * a.shared.feature_plane + first));
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            uint32_t m[2][4], line = (first + k * MEGA_TILE) * 128;
            load_matrices_transposed(m[0], at + line);
            load_matrices_transposed(m[1], (at ^ 32) + line);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int p = 0; p < MEGA_PARTS; p++)
                    multiply_8(c[i % 2][p], m[i % 2][i / 2 * 2], m[i % 2][i / 2 * 2 + 1],
                               features[p][k + i / 2]);
        }
    }
}

/* W_down^T times the features of every row of x: product_transposed() of each. Peers multiply each
 * other's features too, each for a share of the columns, so that all peers' parts of a column need
 * one addition to the next residual; each block's part is rounded to fixed point before, as alone.
 * Half the warps have the odd chunks of the share, half the even ones. Additions overlap with the
 * next chunks. */
MEGA_FN void batch_transposed(const mega_arguments &a, mega_block &b, const mega_entry &e,
                              uint32_t tag)
{
    int64_t sums[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 1
    for (int i = 0; i < a.n_turns; i++) {
        b.reload(); /* sums leave no registers for what can be computed again */
        int half = b.warp >> 3, group = b.warp >> 1 & 3, odd = b.warp & 1;
        bool busy = group < a.down_groups;
        mega_turn turn = a.turns[i];
        if (turn.peer == 1 && turn.share == 0) wait_peers(a, b, e, tag);
        uint32_t at = acquire_chunk(a, b);
        if ((turn.share & 1) != half) {
            release_chunk(a, b);
            continue;
        }
        int line = (busy ? group * a.down_rows : 0) + (b.lane & 7) + (b.lane >> 4) * MEGA_TILE;
        at += line * 128 + (((4 * odd + (b.lane >> 3 & 1)) ^ (line & 7)) << 4);
        float c[2][MEGA_PARTS][4];
        multiply_down(a, b, at, feature_planes(a, turn.peer), c);
        release_chunk(a, b);
#pragma unroll
        for (int k = 0; k < 2; k++)
            sum_outputs(b, c[k], sums[k]);
        if (turn.peer < a.peers - 1) continue;
        int64_t *next = batch_sums(a, b.pass(), 2 * e.in.layer + 2);
        int column = (down_chunk(a, e, turn) * a.down_groups + group) * 64 + 32 * odd;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            add_outputs(a, b, next, column + 16 * k, busy && column < a.hidden, sums[k]);
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[k][j] = 0;
        }
    }
    signal_added(a, b);
}

/* ---- W_o ---- */

/* A KV head's columns of W_o times the outputs of its heads for every row of x: product_heads() of
 * each, to sums[group of columns][row][row of x]. Loads the planes into registers first, because
 * the sums overwrite them. */
MEGA_FN void batch_heads(const mega_arguments &a, mega_block &b, int rows, int groups)
{
    int g = b.lane >> 2, t = b.lane & 3;
    int slice = b.warp % groups, tile = b.warp / groups;
    bool busy = tile * 16 < a.box_rows;
    int line = slice * a.box_rows + (busy ? tile * 16 : 0) + (b.lane & 15);
    uint32_t mine = line * 128 + (((b.lane >> 4) ^ (line & 7)) << 4);
    uint32_t plane = b.own + a.shared.heads + 2 * (g * a.shared.head_row + slice * 64 + 2 * t);
    uint32_t v[4][MEGA_PARTS][2];
#pragma unroll
    for (int p = 0; p < MEGA_PARTS; p++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j / 2][p][j % 2] = load_shared(plane + 2 * p * a.shared.head_plane + 16 * j);
    b.sync();
    uint32_t sums = b.own + a.shared.sums +
                    4 * ((slice * a.shared.sum_pitch + tile * 16 + g) * MEGA_ROWS + 2 * t);
#pragma unroll 1
    for (int row = 0; row < rows; row += a.box_rows) {
        uint32_t m[4][4], at = acquire_chunk(a, b) + mine;
#pragma unroll
        for (int j = 0; j < 4; j++)
            /* For idle warps too: in a branch m would be in local memory. */
            load_matrices(m[j], at ^ (j << 5));
        release_chunk(a, b);
        if (!busy) continue;
        float c[MEGA_PARTS][4], d[MEGA_PARTS][4];
#pragma unroll
        for (int p = 0; p < 4 * MEGA_PARTS; p++)
            c[p / 4][p % 4] = d[p / 4][p % 4] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                multiply(j & 1 ? d[p] : c[p], m[j][0], m[j][1], m[j][2], m[j][3], v[j][p][0],
                         v[j][p][1]);
        uint32_t to = sums + 4 * row * MEGA_ROWS;
        store_shared_two(to, sum_parts(c, d, 0), sum_parts(c, d, 1));
        store_shared_two(to + 4 * 8 * MEGA_ROWS, sum_parts(c, d, 2), sum_parts(c, d, 3));
    }
    b.sync();
}

#endif
