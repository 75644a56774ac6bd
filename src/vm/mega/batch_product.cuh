/* Weights times the vectors of up to eight rows of x, on the tensor cores.
 *
 * The same as product.cuh for one row, to the same bits: a row of x is a column of the other
 * operand, its three planes are three products, and every sum is made in the same order. x does not
 * go through shared memory: each warp keeps the columns that it multiplies, of all rows of x, in
 * registers. Those are 128 columns of eight rows; where rows of weights have two blocks of 2,048
 * columns, 128 of each block of four rows, and a row of x is two columns of the other operand.
 */
#pragma once

#include "vm/mega/batch_x.cuh"

/* ---- rows times x ---- */

/* Adds the products of the three planes in the order of one vector's. */
MEGA_FN float sum_planes(float v0, float v1, float v2)
{
    if (MEGA_HALF) {
        v0 *= 1 / plane_factor(0);
        v1 *= 1 / plane_factor(1);
        v2 *= 1 / plane_factor(2);
    }
    return (v0 + v1) + v2;
}
MEGA_FN float sum_parts(const float (*c)[4], const float (*d)[4], int i)
{
    return sum_planes(c[0][i] + d[0][i], c[1][i] + d[1][i], c[2][i] + d[2][i]);
}

/* Four warps, by turns, add up all warps' sums in the order of one vector's, and store
 * results[row of x][first + row of weights]. */
template <int BLOCKS>
MEGA_FN void add_warps(const mega_arguments &a, const mega_block &b, int turn, int first, int rows,
                       bool in_order)
{
    typedef batch_shape<BLOCKS> shape;
    const int i = b.thread & 127, row = i / shape::ROWS;
    if ((b.warp >> 2) != (turn & 3) || i >= shape::SUMS) return;
    uint32_t sums = b.own + a.shared.sums + 4 * ((turn & 1) * shape::SUMS * MEGA_WARPS + i);
    uint32_t to = a.shared.results + 4 * (i % shape::ROWS * a.shared.result_pitch + first + row);
    float v[MEGA_WARPS];
#pragma unroll
    for (int w = 0; w < MEGA_WARPS; w++)
        v[w] = __uint_as_float(load_shared(sums + 4 * shape::SUMS * w));
    if (row < rows) store_shared(b.own + to, add_sixteen(v, in_order));
}

/* Stores a warp's sums [row of weights][row of x]. */
template <int BLOCKS>
MEGA_FN void store_sums(const mega_arguments &a, const mega_block &b, int turn, const float (*c)[4],
                        const float (*d)[4])
{
    typedef batch_shape<BLOCKS> shape;
    const int g = b.lane >> 2, t = b.lane & 3, row = (g & 1) * shape::HALF + (g >> 1);
    uint32_t to =
        b.own + a.shared.sums +
        4 * (((turn & 1) * MEGA_WARPS + b.warp) * shape::SUMS + row * shape::ROWS + 2 * t);
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums[i] = sum_parts(c, d, i);
    if (BLOCKS == 1) {
        store_shared_two(to, sums[0], sums[1]);
        store_shared_two(to + 4 * 4 * shape::ROWS, sums[2], sums[3]);
        return;
    }
    /* The first block's sums are in the lower columns, the second's in the upper ones. */
    sums[0] += __shfl_xor_sync(~0u, sums[2], 2);
    sums[1] += __shfl_xor_sync(~0u, sums[3], 2);
    if (t < 2) store_shared_two(to, sums[0], sums[1]);
}

/* `tiles` tiles of 8 rows of weights from the ring times x: results[row of x][first + row]. Two
 * chunks at once: two tiles, or of longer rows one. `turn` counts these; there are two buffers of
 * sums. Called in one place, as multiply_rows() is. Computes addresses anew for each turn, because
 * x leaves no registers for them.
 *
 * A lane's rows are g / 2 and, where chunks have eight, g / 2 + 4: with an even g of the first
 * chunk, with an odd one of the second. Rows are contiguous, so all of a chunk begin at the same
 * bank of shared memory, but those of odd stages 64 bytes later (mega_fetch::shift). */
template <int BLOCKS>
MEGA_FN void multiply_batch(const mega_arguments &a, mega_block &b,
                            const uint32_t (*x)[MEGA_PARTS][2], int tiles, int first, bool in_order,
                            int &turn)
{
    const int each = batch_shape<BLOCKS>::TILES;
#pragma unroll 1
    for (int i = 0; i < tiles; i += each, turn++) {
        b.reload();
        float c[MEGA_PARTS][4], d[MEGA_PARTS][4];
#pragma unroll
        for (int p = 0; p < 4 * MEGA_PARTS; p++)
            c[p / 4][p % 4] = d[p / 4][p % 4] = 0;
        bool both = BLOCKS > 1 || i + 1 < tiles;
        ring_place one = b.place;
        if (both) b.place.advance(a.stages);
        uint32_t full = b.own + a.shared.full;
        wait_chunk(full + 8 * one.stage, one.parity);
        if (both) wait_chunk(full + 8 * b.place.stage, b.place.parity);
        int stage = (b.lane & 4) && both ? b.place.stage : one.stage;
        uint32_t mine = b.ring + stage * MEGA_STAGE + (stage & 1) * MEGA_SHIFT +
                        (b.lane >> 3) * 2 * a.hidden + b.warp * 256 + (b.lane & 3) * 16;
        uint32_t at[2] = {mine, mine + (BLOCKS > 1 ? 2 * MEGA_COLUMNS : 8 * a.hidden)};
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint4 m = load_shared_16(at[0] + j * 32), n = load_shared_16(at[1] + j * 32);
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                multiply_16<MEGA_HALF>(c[p], m.x, n.x, m.y, n.y, x[j][p][0], x[j][p][1]);
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                multiply_16<MEGA_HALF>(d[p], m.z, n.z, m.w, n.w, x[j + 1][p][0], x[j + 1][p][1]);
        }
        __syncwarp();
        uint32_t empty = b.own + a.shared.empty;
        if (signals(b)) barrier_arrive(empty + 8 * one.stage);
        if (signals(b) && both) barrier_arrive(empty + 8 * b.place.stage);
        b.place.advance(a.stages);
        b.reload();
        store_sums<BLOCKS>(a, b, turn, c, d);
        b.sync();
        add_warps<BLOCKS>(a, b, turn, first + i * MEGA_TILE, min(each, tiles - i) * MEGA_TILE,
                          in_order);
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
            own[r] = sum_planes(c[0][2 * i + r], c[1][2 * i + r], c[2][2 * i + r]);
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
    return e.weights.down_first + i - (i < a.down_share ? 0 : a.down_share);
}

/* The first feature of a block of the group: peer 0 is this block. */
MEGA_FN int first_feature(const mega_entry &e, int peer)
{
    return peer ? e.weights.peers[peer - 1].begin : e.in.units.begin;
}

/* Offset of the planes of a block's features. */
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
    return (int64_t *)a.features + (uint32_t)(row * a.n_features);
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
    for (int place = b.thread & 63; place < padded; place += 64) {
        int64_t v[MEGA_PEERS - 1];
        watchdog watchdog = {0, 0};
        for (;;) {
            uint32_t wrong = 0;
#pragma unroll
            for (int k = 0; k < MEGA_PEERS - 1; k++) {
                instruction_span of = e.weights.peers[k + 1 < a.peers ? k : 0];
                const int at = of.begin - features_lead(of.begin) + place;
                v[k] = load_relaxed(list + (at >= of.begin && at < of.end ? at : of.begin));
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
            const int at = of.begin - features_lead(of.begin) + place;
            bool there = at >= of.begin && at < of.end;
            uint16_t *planes =
                b.at<uint16_t>(feature_planes(a, k + 1)) + row * a.shared.feature_row;
#pragma unroll
            for (int p = 0; p < MEGA_PARTS; p++)
                planes[plane_place(place) + p * a.shared.feature_plane] =
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
                    multiply_16_8<MEGA_HALF>(c[i % 2][p], m[i % 2][i / 2 * 2],
                                             m[i % 2][i / 2 * 2 + 1], features[p][k + i / 2]);
        }
    }
}

/* W_down^T times the features of every row of x: product_transposed() of each. Peers multiply each
 * other's features too, each for a share of the columns, so that all peers' parts of a column need
 * one addition to the next residual; each block's part is first rounded to fixed point, as for one
 * row. Half the warps have the odd chunks of the share, half the even ones. Additions overlap with
 * the next chunks. */
template <int BLOCKS>
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
        /* The eights of a line are exchanged by its number in the box, or in memory. */
        int exchanged = BLOCKS > 1 ? first_feature(e, turn.peer) + b.lane : line;
        at += line * 128 + (((4 * odd + (b.lane >> 3 & 1)) ^ (exchanged & 7)) << 4);
        float c[2][MEGA_PARTS][4];
        multiply_down(a, b, at, feature_planes(a, turn.peer), c);
        release_chunk(a, b);
#pragma unroll
        for (int k = 0; k < 2; k++)
            sum_outputs(b, c[k], sums[k]);
        if (turn.peer + 1 < a.peers) continue;
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
 * the sums overwrite them. ROWS: of x, at most. */
template <int ROWS>
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
    uint32_t sums =
        b.own + a.shared.sums + 4 * ((slice * a.shared.sum_pitch + tile * 16 + g) * ROWS + 2 * t);
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
                multiply_16<MEGA_HALF>(j & 1 ? d[p] : c[p], m[j][0], m[j][1], m[j][2], m[j][3],
                                       v[j][p][0], v[j][p][1]);
        uint32_t to = sums + 4 * row * ROWS;
        if (2 * t < ROWS) {
            store_shared_two(to, sum_parts(c, d, 0), sum_parts(c, d, 1));
            store_shared_two(to + 4 * 8 * ROWS, sum_parts(c, d, 2), sum_parts(c, d, 3));
        }
    }
    b.sync();
}
