/* Quantised weights times the vectors of up to eight rows of x: what batch_product.cuh does for
 * weights of 16 bits.
 *
 * x is two BF16 numbers, 16 bits of an element, and each product enters sums of float32: a block's,
 * then, times the block's scale, a row's. So results are not those of one row's kernel to the bit,
 * but they depend on no other row of x.
 */
#pragma once

#include "vm/mega/batch_fragments.h"
#include "vm/mega/batch_numbers.cuh"
#include "vm/mega/batch_product.cuh"
#include "vm/mega/fragments.cuh"

enum {
    HALF_ROWS = FRAGMENT_ROWS * PAIR_BLOCKS, /* outputs of half a fragment of W_down */
    DOWN_FRAGMENTS = MEGA_WARPS / 2,         /* of W_down, one below the other, in a chunk */
    TILE_SUMS = FRAGMENT_ROWS * MEGA_ROWS,   /* of a warp, of a tile */
    TURN_TILES = FRAGMENT_TURN_TILES,
    TURN_SUMS = TURN_TILES * TILE_SUMS, /* where each warp's norm was: norm_place() */
    DOWN_GROUPS = 2,                    /* of 32 features in a chunk */
};

/* Calls work() with the kind as a type. */
template <int OF> struct kind_of {
    enum { KIND = OF };
};
template <typename WORK> MEGA_FN void for_kind(int kind, WORK work)
{
    if (is_kind<FRAGMENT_Q4_0>(kind))
        work(kind_of<FRAGMENT_Q4_0>());
    else if (is_kind<FRAGMENT_Q8_0>(kind))
        work(kind_of<FRAGMENT_Q8_0>());
    else if (is_kind<FRAGMENT_Q4_1>(kind))
        work(kind_of<FRAGMENT_Q4_1>());
    else if (is_kind<FRAGMENT_Q4_K>(kind))
        work(kind_of<FRAGMENT_Q4_K>());
    else if (is_kind<FRAGMENT_Q6_K>(kind))
        work(kind_of<FRAGMENT_Q6_K>());
}

/* Waits for the next chunk of rows; returns this warp's first fragment. */
template <int KIND> MEGA_FN uint32_t acquire_fragment(const mega_arguments &a, mega_block &b)
{
    const uint32_t shift = (b.place.stage & 1) * MEGA_SHIFT; /* mega_fetch::stage_of_rows() */
    return acquire_chunk(a, b) + shift + b.warp * fragment_bytes(KIND);
}

/* A warp's columns of all rows of x: 128 of each of UNITS blocks of 2,048 columns. Registers have
 * room for two BF16 numbers of an element of one block, which are 16 bits of it, and one of two. */
template <int UNITS> struct row_vectors {
    enum { PARTS = UNITS > 1 ? 1 : 2 };
    uint32_t of[8 * UNITS][MEGA_PARTS][2];
    offset_sums<(UNITS > 1 ? 2 : 4)> sums[FRAGMENT_BLOCKS * UNITS];

    MEGA_FN void add_up()
    {
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS * UNITS; j++)
            sums[j].template add_up<PARTS>(of + 2 * j);
    }
};

/* A fragment in registers. */
template <int KIND> struct number_fragment {
    number_pair<KIND> half[2];

    MEGA_FN void load(uint32_t at, int lane)
    {
        half[0].load(at, lane, 0);
        half[1].load(at, lane, 1);
    }
    /* Unit: of x. */
    template <int UNITS>
    MEGA_FN void multiply(uint32_t mask, const row_vectors<UNITS> &x, int unit, float *r) const
    {
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS; j++)
            add_block<KIND, row_vectors<UNITS>::PARTS>(half[j / 2], mask, j % 2,
                                                       x.of + 8 * unit + 2 * j,
                                                       x.sums[FRAGMENT_BLOCKS * unit + j], r);
    }
};

/* The fragments of a unit, 16 rows by up to 2,048 columns. */
MEGA_FN int unit_fragments(const mega_arguments &a, int unit)
{
    return min((int)MEGA_WARPS, a.tiles[OVER_HIDDEN].across - unit * MEGA_WARPS);
}

/* ---- rows times x ---- */

/* Half of the warps, by turns, add up all warps' sums of some tiles, and store
 * results[row of x][first + row of weights]. */
MEGA_FN void add_slices(const mega_arguments &a, const mega_block &b, int turn, int first,
                        int tiles)
{
    static_assert(TURN_SUMS == MEGA_CONSUMERS / 2, "a sum each");
    static_assert(TURN_SUMS == (int)batch_shape<1>::SUMS, "as norm_place() has it");
    const int i = b.thread & (TURN_SUMS - 1);
    if ((b.warp >> 3) != (turn & 1) || i >= tiles * TILE_SUMS) return;
    const uint32_t sums = b.own + a.shared.sums + 4 * ((turn & 1) * TURN_SUMS * MEGA_WARPS + i);
    float v[MEGA_WARPS], four[4] = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < MEGA_WARPS; w++)
        v[w] = __uint_as_float(load_shared(sums + 4 * TURN_SUMS * w));
#pragma unroll
    for (int w = 0; w < MEGA_WARPS; w++)
        four[w % 4] += v[w];
    store_shared(b.own + a.shared.results +
                     4 * (i % MEGA_ROWS * a.shared.result_pitch + first + i / MEGA_ROWS),
                 (four[0] + four[1]) + (four[2] + four[3]));
}

/* `tiles` tiles of 16 rows from the ring times x: results[row of x][first + row]. */
template <int KIND, int UNITS>
MEGA_FN void multiply_fragments_of(const mega_arguments &a, mega_block &b,
                                   const row_vectors<UNITS> &x, int tiles, int first, int &turn)
{
    const uint32_t mask = nibble_mask();
#pragma unroll 1
    for (int i = 0; i < tiles; i += TURN_TILES, turn++) {
        const int there = min((int)TURN_TILES, tiles - i), each = fragment_chunk_units(KIND);
        b.reload();
        uint32_t at = 0;
#pragma unroll
        for (int n = 0; n < TURN_TILES; n++) {
            if (n >= there) break;
            float r[4] = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < UNITS; k++) {
                const int unit = n * UNITS + k;
                number_fragment<KIND> w;
                if (unit % each == 0) at = acquire_fragment<KIND>(a, b);
                w.load(at, b.lane);
                at += unit_fragments(a, k) * fragment_bytes(KIND);
                if ((unit + 1) % each == 0 || unit + 1 == there * UNITS) release_chunk(a, b);
                if (b.warp < unit_fragments(a, k)) w.multiply(mask, x, k, r);
            }
            const uint32_t to =
                b.own + a.shared.sums +
                4 * (((turn & 1) * MEGA_WARPS + b.warp) * TURN_SUMS + n * TILE_SUMS + 2 * b.lane);
            store_shared_two(to, r[0], r[1]);
            store_shared_two(to + 4 * TILE_SUMS / 2, r[2], r[3]);
        }
        b.sync();
        add_slices(a, b, turn, first + i * FRAGMENT_ROWS, there);
    }
}

/* `tiles` tiles of 8 rows of an entry's matrix: multiply_batch() of quantised weights. */
template <int DIM, int UNITS>
MEGA_FN void multiply_fragments(const mega_arguments &a, mega_block &b, const row_vectors<UNITS> &x,
                                int matrix, int tiles, int first, int &turn)
{
    tiles = (tiles + 1) / 2;
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        const mega_entry &e = b.current();
        const tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        const int kind = e.weights.kinds[run.matrix], row = first + tile * FRAGMENT_ROWS;
        tile += run.tiles;
        for_kind(kind, [&](auto k) {
            multiply_fragments_of<decltype(k)::KIND>(a, b, x, run.tiles, row, turn);
        });
    }
}

/* ---- W_o ---- */

/* Tiles of a KV head's columns of W_o: sums[slice of columns][row][row of x]. */
template <int KIND>
MEGA_FN void multiply_heads_of(const mega_arguments &a, mega_block &b, const row_vectors<1> &x,
                               int tiles)
{
    const uint32_t mask = nibble_mask();
    const mega_tiles shape = a.tiles[OVER_HEAD];
    const int tile = b.warp * shape.inverse >> 8, slice = b.warp - tile * shape.across;
    const int row = tile * FRAGMENT_ROWS + (b.lane >> 2);
    const uint32_t sums = b.own + a.shared.sums +
                          4 * ((slice * a.shared.sum_pitch + row) * MEGA_ROWS + 2 * (b.lane & 3));
#pragma unroll 1
    for (int i = 0; i < tiles; i += shape.beside) {
        number_fragment<KIND> w;
        float r[4] = {0, 0, 0, 0};
        w.load(acquire_fragment<KIND>(a, b), b.lane);
        release_chunk(a, b);
        if (tile >= shape.beside || i + tile >= tiles) continue;
        w.multiply(mask, x, 0, r);
        const uint32_t to = sums + 4 * i * FRAGMENT_ROWS * MEGA_ROWS;
        store_shared_two(to, r[0], r[1]);
        store_shared_two(to + 4 * 8 * MEGA_ROWS, r[2], r[3]);
    }
}

/* batch_heads() of quantised weights. Returns the number of slices. */
template <int DIM>
MEGA_FN int multiply_heads(const mega_arguments &a, mega_block &b, const mega_entry &e, int rows)
{
    const mega_tiles shape = a.tiles[OVER_HEAD];
    const int slice = b.warp - (b.warp * shape.inverse >> 8) * shape.across;
    const int tiles = rows / FRAGMENT_ROWS, kind = e.weights.kinds[0], columns = a.group * DIM;
    row_vectors<1> x;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const int column = slice * FRAGMENT_WIDTH + 16 * j;
        const bool there = column < columns; /* heads are multiples of 64 columns */
        const uint32_t from =
            b.own + a.shared.heads +
            2 * ((b.lane & 7) * a.shared.head_row + (there ? column : 0) + 8 * (b.lane >> 3));
#pragma unroll
        for (int p = 0; p < row_vectors<1>::PARTS; p++) {
            uint32_t v[4];
            load_matrices(v, from + 2 * p * a.shared.head_plane);
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.of[j + i / 2][p][i % 2] = there ? v[i] : 0;
        }
    }
    x.add_up();
    b.sync(); /* the sums overwrite the planes */
    for_kind(kind, [&](auto k) { multiply_heads_of<decltype(k)::KIND>(a, b, x, tiles); });
    b.sync();
    return shape.across;
}

/* ---- W_down ---- */

/* The features of a block of the group: peer 0 is this block. */
MEGA_FN instruction_span peer_features(const mega_entry &e, int peer)
{
    return peer ? e.weights.peers[peer - 1] : e.in.units;
}

/* Calls work(peer, group, groups) for each chunk of a part of the block's share of W_down: `groups`
 * groups of 32 features of the peer, from `group` on. Producer and consumers walk the chunks alike.
 */
template <typename WORK>
MEGA_FN void for_down_groups(const mega_arguments &a, const mega_entry &e, WORK work)
{
#pragma unroll 1
    for (int peer = 0; peer < a.peers; peer++) {
        const instruction_span features = peer_features(e, peer);
        const int end = (features.end + FRAGMENT_COLUMNS - 1) / FRAGMENT_COLUMNS;
#pragma unroll 1
        for (int group = features.begin / FRAGMENT_COLUMNS; group < end; group += DOWN_GROUPS)
            work(peer, group, min((int)DOWN_GROUPS, end - group));
    }
}

/* Adds a warp's 16 outputs of all rows of x to the next residual. They are the parts of all blocks
 * of the group, and count as so many. */
MEGA_FN void add_down(const mega_arguments &a, const mega_block &b, int64_t *next, int column,
                      bool inside, const float *r)
{
    const bool low = b.lane < 16;
    const int64_t others = (int64_t)(a.peers - 1) << FIXED_COUNT_AT;
    int64_t sums[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float other = __shfl_xor_sync(~0u, r[2 * i + 1], 16);
        sums[2 * i] = fixed_part(low ? r[2 * i] : other) + others;
        sums[2 * i + 1] = fixed_part(low ? other : r[2 * i]) + others;
    }
    add_outputs(a, b, next, column, inside, sums);
}

/* A group of 32 features of all rows of x. `from`: this lane's row of matrices. */
struct feature_vectors {
    uint32_t of[2][MEGA_PARTS][2];
    offset_sums<4> sums;

    MEGA_FN void load(const mega_arguments &a, uint32_t from)
    {
#pragma unroll
        for (int p = 0; p < row_vectors<1>::PARTS; p++) {
            uint32_t v[4];
            load_matrices(v, from + 2 * p * a.shared.feature_plane);
#pragma unroll
            for (int i = 0; i < 4; i++)
                of[i / 2][p][i % 2] = v[i];
        }
        sums.add_up<row_vectors<1>::PARTS>(of);
    }
};

/* `fragments` of the block's share, from fragment `first` on: a warp has half of one, 32 outputs,
 * which it sums over the features of all blocks of the group. So the group's parts of an output are
 * one addition to the residual. */
template <int KIND>
MEGA_FN void multiply_down_part(const mega_arguments &a, mega_block &b, const mega_entry &e,
                                int first, uint32_t tag)
{
    const int fragments = min((int)DOWN_FRAGMENTS, a.down_share - first);
    const uint32_t mask = nibble_mask();
    float r[PAIR_BLOCKS][4];
    bool waits = first == 0;
#pragma unroll
    for (int i = 0; i < PAIR_BLOCKS * 4; i++)
        r[i / 4][i % 4] = 0;
    for_down_groups(a, e, [&](int peer, int group, int groups) {
        if (peer > 0 && waits) {
            wait_peers(a, b, e, tag);
            waits = false;
        }
        b.reload();
        number_pair<KIND> w[DOWN_GROUPS];
        const uint32_t at =
            acquire_chunk(a, b) + min(b.warp >> 1, fragments - 1) * fragment_bytes(KIND);
#pragma unroll
        for (int n = 0; n < DOWN_GROUPS; n++)
            w[n].load(at + (n < groups ? n : 0) * fragments * fragment_bytes(KIND), b.lane,
                      b.warp & 1);
        release_chunk(a, b);
        const int begin = peer_features(e, peer).begin;
        const int feature = group * FRAGMENT_COLUMNS - (begin - features_lead(begin));
        const uint32_t from =
            b.own + feature_planes(a, peer) +
            2 * ((b.lane & 7) * a.shared.feature_row + feature + MEGA_TILE * (b.lane >> 3));
#pragma unroll
        for (int n = 0; n < DOWN_GROUPS; n++) {
            if (n >= groups) break;
            feature_vectors x;
            x.load(a, from + 2 * n * FRAGMENT_COLUMNS);
#pragma unroll
            for (int k = 0; k < PAIR_BLOCKS; k++)
                add_block<KIND, row_vectors<1>::PARTS>(w[n], mask, k, x.of, x.sums, r[k]);
        }
    });
    const int fragment = first + (b.warp >> 1);
    const int output = ((int)e.weights.down_first + fragment) * FRAGMENT_ROWS * FRAGMENT_BLOCKS +
                       (b.warp & 1) * HALF_ROWS;
    int64_t *next = batch_sums(a, b.pass(), 2 * e.in.layer + 2);
#pragma unroll
    for (int k = 0; k < PAIR_BLOCKS; k++)
        add_down(a, b, next, output + FRAGMENT_ROWS * k, fragment < a.down_share, r[k]);
}

template <int KIND>
MEGA_FN void multiply_down_of(const mega_arguments &a, mega_block &b, const mega_entry &e,
                              uint32_t tag)
{
#pragma unroll 1
    for (int first = 0; first < a.down_share; first += DOWN_FRAGMENTS)
        multiply_down_part<KIND>(a, b, e, first, tag);
    signal_added(a, b);
}

/* batch_transposed() of quantised weights. */
MEGA_FN void multiply_down_fragments(const mega_arguments &a, mega_block &b, const mega_entry &e,
                                     uint32_t tag)
{
    for_kind(e.weights.kinds[2],
             [&](auto k) { multiply_down_of<decltype(k)::KIND>(a, b, e, tag); });
}
