/* Weights of 16 bits times vectors, on the tensor cores.
 *
 * A chunk is 8 rows of up to 2,048 columns, or 4 longer rows, or 4 halves of rows of 8,192. Warp w
 * has columns [128 w, 128 w + 128) of all rows, and of longer rows those 2,048 further, which is a
 * block of columns each. The vector is three planes of the
 * weights' type, in the first three columns of the other operand. Every product is exact and sums
 * are float32 in a fixed order, so results have the same bits in every run.
 */
#pragma once

#include "vm/mega/block.cuh"

/* Two columns of an accumulator, divided by their planes' factors. */
MEGA_FN float scaled_columns(float c0, float c1)
{
    if (MEGA_HALF) {
        bool last = threadIdx.x & 1; /* this lane has the third column, and a column of zeros */
        c0 *= 1 / (last ? plane_factor(2) : plane_factor(0));
        c1 *= 1 / plane_factor(1);
    }
    return c0 + c1;
}
/* The sum of an accumulator's first three columns: rows g and g + 8, in lanes 4 g. */
MEGA_FN float sum_columns(float c0, float c1)
{
    float sum = scaled_columns(c0, c1);
    return sum + __shfl_down_sync(~0u, sum, 1);
}
/* The same where rows g + 8 are the second block of columns of rows g, and their planes are columns
 * 4 to 6. */
MEGA_FN float sum_halves(const float *c, const float *d)
{
    bool second = threadIdx.x & 2;
    float sum =
        scaled_columns(second ? c[2] + d[2] : c[0] + d[0], second ? c[3] + d[3] : c[1] + d[1]);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

/* The vector's two registers for 16 columns. `at`: this lane's place in its plane. */
MEGA_FN void load_vector(uint32_t at, bool used, uint32_t *v)
{
    uint32_t low = load_shared(at), high = load_shared(at + 16);
    v[0] = used ? low : 0;
    v[1] = used ? high : 0;
}

/* The same for a warp's 128 columns, in the order of row_fragments. */
MEGA_FN void load_vectors(uint32_t at, bool used, uint32_t v[8][2])
{
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint4 all = load_shared_16(at + j * 32);
        v[j][0] = used ? all.x : 0, v[j][1] = used ? all.y : 0;
        v[j + 1][0] = used ? all.z : 0, v[j + 1][1] = used ? all.w : 0;
    }
}

/* A warp's 128 columns of 16 rows from two chunks, where rows are contiguous as in memory. Two
 * tiles (of an odd number the last one is there twice); or, of longer rows, one tile and its
 * columns 2,048 further. */
template <int BLOCKS> struct row_fragments {
    uint32_t m[8][4];

    /* A lane's eight neighbouring columns of 32 are its columns of two instructions; the vector is
     * read in the same order. All rows begin at the same bank of shared memory, so every second row
     * is read 32 columns ahead. */
    MEGA_FN void load(const mega_arguments &a, const mega_block &b, uint32_t one, uint32_t two)
    {
        const int g = b.lane >> 2, t = b.lane & 3;
        const bool odd = g & 1;
        const int pitch = BLOCKS > 2 ? (int)MEGA_HALF_ROW : 2 * a.hidden;
        uint32_t mine = b.warp * 256 + ((t + 4 * odd) << 4) + (BLOCKS > 1 ? g & 3 : g) * pitch;
        uint32_t at[2] = {mine + (BLOCKS > 1 && g & 4 ? two : one), mine + two};
        if (BLOCKS > 1) at[1] = at[0] + 2 * MEGA_COLUMNS;
#pragma unroll
        for (int j = 0; j < 4; j += 2)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 u = load_shared_16(at[half] + j * 64);
                uint4 v = load_shared_16((at[half] ^ 64) + j * 64);
                set(2 * j, half, odd ? v : u);
                set(2 * j + 2, half, odd ? u : v);
            }
    }
    MEGA_FN void set(int step, int half, uint4 v)
    {
        m[step][half] = v.x, m[step][2 + half] = v.y;
        m[step + 1][half] = v.z, m[step + 1][2 + half] = v.w;
    }
    /* Loads from the ring, and releases the stages. */
    MEGA_FN void take(const mega_arguments &a, mega_block &b, bool both)
    {
        uint32_t full = b.own + a.shared.full, empty = b.own + a.shared.empty;
        ring_place one = b.place, two = b.place;
        two.advance(a.stages);
        wait_chunk(full + 8 * one.stage, one.parity);
        if (both) wait_chunk(full + 8 * two.stage, two.parity);
        load(a, b, b.ring + one.stage * MEGA_STAGE,
             b.ring + (both ? two.stage : one.stage) * MEGA_STAGE);
        __syncwarp();
        if (signals(b)) barrier_arrive(empty + 8 * one.stage);
        if (signals(b) && both) barrier_arrive(empty + 8 * two.stage);
        if (both) b.place = two;
        b.place.advance(a.stages);
    }
};

/* Chunks are loaded before the vector is there, which makes room in the ring for as many more.
 * Kernels that sample lack the registers. */
enum { LOADS_EARLY = !MEGA_CHOOSES };

/* The first chunks of `tiles` tiles of 8 rows, if LOADS_EARLY. */
template <int BLOCKS>
MEGA_FN void take_early(const mega_arguments &a, mega_block &b, int tiles, row_fragments<BLOCKS> &w)
{
    if (LOADS_EARLY && tiles > 0) w.take(a, b, BLOCKS > 1 || tiles > 1);
}

/* `tiles` tiles of 8 rows times the planes: sums[warp][first + row]. BLOCKS: blocks of 2,048
 * columns in a row; of two, the other operand's columns are the planes of the first block, a zero,
 * then those of the second; of four, halves of the rows are multiplied one after the other. `w` has
 * the first chunks, and after the call those of the next call's `next` tiles. Called in one place
 * and inlined there, because spills and calls go to local memory, which has almost no cache beside
 * a ring of this size. */
template <int DIM, int BLOCKS>
MEGA_FN void multiply_rows(const mega_arguments &a, mega_block &b, const mega_entry &, int,
                           int tiles, int first, int next, row_fragments<BLOCKS> &w)
{
    const int each = BLOCKS > 1 ? 1 : 2, plane = b.lane >> 2 & 3, block = b.lane >> 4;
    const bool used = plane < MEGA_PARTS && block < BLOCKS;
    int g = b.lane >> 2, t = b.lane & 3;
    uint32_t planes = b.own + a.shared.planes +
                      2 * (min(plane, 2) * a.shared.plane +
                           (BLOCKS > 1 ? block * MEGA_COLUMNS : 0) + b.warp * 128 + 8 * t);
    uint32_t sums = b.own + a.shared.sums + 4 * (b.warp * a.shared.sum_pitch + first + g);
    const int halves = BLOCKS > 2 ? 2 : 1;
    uint32_t v[8][2];
    load_vectors(planes, used, v);
#pragma unroll 1
    for (int i = 0; i < tiles; i += each) {
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (int half = 0; half < halves; half++) {
            if (halves > 1) load_vectors(planes + half * MEGA_HALF_ROW, used, v);
            if (!LOADS_EARLY) w.take(a, b, BLOCKS > 1 || i + 1 < tiles);
#pragma unroll
            for (int j = 0; j < 8; j++)
                multiply_16<MEGA_HALF>(j & 1 ? d : c, w.m[j][0], w.m[j][1], w.m[j][2], w.m[j][3],
                                       v[j][0], v[j][1]);
            const int left = half + 1 < halves ? tiles : tiles - i - each;
            take_early<BLOCKS>(a, b, left > 0 ? left : next, w);
        }
        if (BLOCKS > 1) {
            float sum = sum_halves(c, d);
            if (t == 0) store_shared(sums + i * 4 * MEGA_TILE, sum);
        } else {
            float low = sum_columns(c[0] + d[0], c[1] + d[1]);
            float high = sum_columns(c[2] + d[2], c[3] + d[3]);
            if (t == 0) store_shared(sums + i * 4 * MEGA_TILE, low);
            if (t == 0 && i + 1 < tiles) store_shared(sums + (i + 1) * 4 * MEGA_TILE, high);
        }
    }
}

/* Parts of a row's sum. */
MEGA_FN int row_slices(const mega_arguments &, const mega_entry &, int)
{
    return MEGA_WARPS;
}

/* W_down^T times the features: 2,048 outputs to out[2048], of which a warp has 128, which are
 * visible to it at the end. With hidden sizes over 2,048 rows are in a stage as in memory: of each
 * 64 columns, the eights are exchanged by the last three bits of the feature's number, so that
 * eight rows have no bank conflict. */
template <int BLOCKS>
MEGA_FN void product_transposed(const mega_arguments &a, mega_block &b, const mega_entry &,
                                int rows, int first, float *out)
{
    float c[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[j][i] = 0;
    int g = b.lane >> 2, t = b.lane & 3;
    uint32_t plane = b.own + a.shared.features + 2 * (min(g, 2) * a.shared.feature_plane + 2 * t);
    const int pitch = BLOCKS > 1 ? 2 * min(MEGA_COLUMNS, a.hidden - first) : (int)MEGA_PITCH;
    const uint32_t begin = b.own + b.slot() + (uint32_t)offsetof(mega_entry, in.units.begin);
    const int exchanged = BLOCKS > 1 ? (int)(load_shared(begin) + b.lane) & 7 : 0;
    uint32_t mine = (b.lane & 7) * pitch + b.warp * 256 + (((b.lane >> 3) ^ exchanged) << 4);
#pragma unroll 1
    for (int row = 0; row < rows; row += MEGA_TILE) {
        uint32_t features = load_shared(plane + 2 * row), m[4][4];
        if (g >= MEGA_PARTS) features = 0;
        uint32_t at = acquire_chunk(a, b) + mine;
#pragma unroll
        for (int j = 0; j < 4; j++)
            load_matrices_transposed(m[j], BLOCKS > 1 ? (at ^ (j & 1) << 6) + (j >> 1) * 128
                                                      : at + j * 64);
        release_chunk(a, b);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            multiply_16_8<MEGA_HALF>(c[2 * j], m[j][0], m[j][1], features);
            multiply_16_8<MEGA_HALF>(c[2 * j + 1], m[j][2], m[j][3], features);
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float low = sum_columns(c[j][0], c[j][1]), high = sum_columns(c[j][2], c[j][3]);
        if (t) continue;
        out[b.warp * 128 + j * 16 + g] = low;
        out[b.warp * 128 + j * 16 + g + 8] = high;
    }
    __syncwarp();
}

/* A KV head's columns of W_o times the outputs of its heads. Boxes of box_rows rows come two at a
 * time; sums of 64 columns go to sums[group of columns][row]. Returns the number of groups. */
template <int DIM>
MEGA_FN int product_heads(const mega_arguments &a, mega_block &b, const mega_entry &, int rows)
{
    int groups = a.group * DIM / 64;
    int g = b.lane >> 2, t = b.lane & 3;
    int tile = b.warp / (DIM / 64) * a.group_inverse / 256, slice = b.warp - tile * groups;
    bool busy = tile * 16 < a.box_rows;
    int line = slice * a.box_rows + (busy ? tile * 16 : 0) + (b.lane & 15);
    uint32_t mine = line * 128 + (((b.lane >> 4) ^ (line & 7)) << 4);
    uint32_t plane =
        b.own + a.shared.heads + 2 * (min(g, 2) * a.shared.head_plane + slice * 64 + 2 * t);
    uint32_t v[8];
#pragma unroll
    for (int j = 0; j < 4; j++)
        load_vector(plane + j * 32, g < MEGA_PARTS, v + 2 * j);
    float *sums = b.at<float>(a.shared.sums) + slice * a.shared.sum_pitch + tile * 16 + g;
    uint32_t full = b.own + a.shared.full, empty = b.own + a.shared.empty;
#pragma unroll 1
    for (int row = 0; row < rows; row += 2 * a.box_rows) {
        bool both = row + a.box_rows < rows;
        ring_place one = b.place, two = b.place;
        two.advance(a.stages);
        uint32_t m[2][4][4];
        wait_chunk(full + 8 * one.stage, one.parity);
        if (both) wait_chunk(full + 8 * two.stage, two.parity);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t at = b.ring + (k && both ? two.stage : one.stage) * MEGA_STAGE + mine;
#pragma unroll
            for (int j = 0; j < 4; j++)
                load_matrices(m[k][j], at ^ (j << 5)); /* for idle warps too, not in a branch */
        }
        __syncwarp();
        if (signals(b)) barrier_arrive(empty + 8 * one.stage);
        if (signals(b) && both) barrier_arrive(empty + 8 * two.stage);
        if (both) b.place = two;
        b.place.advance(a.stages);
        if (!busy) continue;
        float c[2][2][4];
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                c[k][i / 4][i % 4] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                multiply_16<MEGA_HALF>(c[k][j & 1], m[k][j][0], m[k][j][1], m[k][j][2], m[k][j][3],
                                       v[2 * j], v[2 * j + 1]);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float low = sum_columns(c[k][0][0] + c[k][1][0], c[k][0][1] + c[k][1][1]);
            float high = sum_columns(c[k][0][2] + c[k][1][2], c[k][0][3] + c[k][1][3]);
            if (t == 0 && (!k || both)) {
                sums[row + k * a.box_rows] = low;
                sums[row + k * a.box_rows + 8] = high;
            }
        }
    }
    return groups;
}
