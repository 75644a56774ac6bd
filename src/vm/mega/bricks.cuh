/* Quantised weights times vectors, by the matrix units.
 *
 * Levels become bf16 without arithmetic: an integer up to 255 in the low bits of a bf16 is that
 * integer times 2^-133, below the smallest normal number and seamlessly above it. The vector's
 * planes are stored times 2^96 to meet it, and where a column's nibble is taken at bits 4..7 of a
 * word, divided by 16: columns 2 and 3 of every four. Levels are counted from the lowest, so an
 * accumulator begins at minus the zero level times the sum of the vector's 32 columns, which the
 * matrix units find too. Products are exact, sums float32; a block's sum is scaled as it is added
 * to its row's.
 */
#ifndef QUIPU_VM_MEGA_BRICKS_CUH
#define QUIPU_VM_MEGA_BRICKS_CUH

#include "vm/mega/block.cuh"
#include "vm/mega/bricks.h"

/* Whether a matrix is of a kind: known where the kernels read only one. */
template <int KIND> MEGA_FN bool is_kind(int kind)
{
    return MEGA_BRICKS == 1 << KIND || ((MEGA_BRICKS >> KIND & 1) && kind == KIND);
}

#define BRICK_UNIT 137438953472.0f /* 2^37, what brings sums back: 2^133 / 2^96 */

/* c (16, 8) = a * b + (z0, z1) in every row. */
MEGA_FN void multiply_from(float *c, const uint32_t *a, uint32_t b0, uint32_t b1, const float *z)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %10, %11};"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(z[0]),
                   "f"(z[1]));
}
MEGA_FN void multiply_more(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    multiply(c, a[0], a[1], a[2], a[3], b0, b1);
}

MEGA_FN uint32_t sixteen_times(uint32_t pair)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&pair, __float2bfloat162_rn(16.0f));
    return *(uint32_t *)&v;
}
MEGA_FN float2 two_halves(uint32_t w)
{
    return __half22float2(*(const __half2 *)&w);
}
/* A byte of a word as a float. */
template <int BYTE> MEGA_FN float byte_float(uint32_t w)
{
    return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7440 + BYTE)) - 8388608.0f;
}

/* ---- the vector ------------------------------------------------------------------------------ */

/* A lane's part of 32 columns: of each fragment two registers; and what accumulators begin with, in
 * this lane's two columns of them (of Q4_K: the sums of the vector's columns; per fragment of
 * Q6_K).
 */
template <int KIND> struct brick_vector {
    enum { BEGINNINGS = KIND == BRICK_Q6_K ? 4 : 2 };
    uint32_t v[4];
    float from[BEGINNINGS];

    /* `at`: the 32 columns in this lane's plane. */
    MEGA_FN void load(uint32_t at, int t)
    {
        if (KIND == BRICK_Q6_K) {
            load_shared_8(v, at + 8 * t);
            load_shared_8(v + 2, at + 32 + 8 * t);
        } else {
            load_shared_words(v, at + 16 * t);
        }
        const bool nibbles = KIND == BRICK_Q4_0 || KIND == BRICK_Q4_K;
        if (!nibbles) v[1] = sixteen_times(v[1]), v[3] = sixteen_times(v[3]);
    }
    MEGA_FN void find_beginnings()
    {
        /* bf16 -128, -8 (and 16 times that), 1, -32, times 2^-133 */
        const uint32_t one = KIND == BRICK_Q8_0   ? 0x80808080
                             : KIND == BRICK_Q4_0 ? 0x80088008
                             : KIND == BRICK_Q4_K ? 0x00010001
                                                  : 0x80208020;
        const uint32_t two = KIND == BRICK_Q4_0   ? 0x80808080
                             : KIND == BRICK_Q4_K ? 0x00100010
                                                  : one;
        const uint32_t a[4] = {one, one, two, two};
        const float zero[2] = {0, 0};
        float c[4];
        multiply_from(c, a, v[0], v[1], zero);
        if (KIND == BRICK_Q6_K) {
            from[0] = c[0], from[1] = c[1];
            multiply_from(c, a, v[2], v[3], zero);
            from[2] = c[0], from[3] = c[1];
        } else {
            multiply_more(c, a, v[2], v[3]);
            from[0] = c[0], from[1] = c[1];
        }
    }
};

/* ---- bricks ---------------------------------------------------------------------------------- */

/* The four registers of a fragment from a word of nibbles. */
MEGA_FN void nibble_fragment(uint32_t w, uint32_t *a)
{
    uint32_t high = w >> 8;
    a[0] = w & 0x000f000f;
    a[1] = high & 0x000f000f;
    a[2] = w & 0x00f000f0;
    a[3] = high & 0x00f000f0;
}

/* r (rows g and g + 8, two columns each) += scales (of the two rows) * c */
MEGA_FN void add_scaled(float *r, float2 scale, const float *c)
{
    r[0] = fmaf(scale.x, c[0], r[0]);
    r[1] = fmaf(scale.x, c[1], r[1]);
    r[2] = fmaf(scale.y, c[2], r[2]);
    r[3] = fmaf(scale.y, c[3], r[3]);
}

/* A lane's part of a brick in registers. SUMS: of a block, each scaled by itself. */
template <int KIND> struct brick;

template <> struct brick<BRICK_Q8_0> {
    enum { BLOCKS = 2, SUMS = 1, BYTES = BRICK_BYTES_Q8_0 };
    uint32_t q[8], scale[2];

    MEGA_FN void load(uint32_t at, int lane)
    {
        load_shared_words(q, at + 16 * lane);
        load_shared_words(q + 4, at + 512 + 16 * lane);
        load_shared_8(scale, at + BRICK_QUANTS + 8 * (lane >> 2));
    }
    MEGA_FN void fragment(int j, int f, uint32_t *a) const
    {
        uint32_t low = q[4 * j + 2 * f], high = q[4 * j + 2 * f + 1];
        a[0] = __byte_perm(low, 0, 0x4140);
        a[1] = __byte_perm(high, 0, 0x4140);
        a[2] = __byte_perm(low, 0, 0x4342);
        a[3] = __byte_perm(high, 0, 0x4342);
    }
    MEGA_FN void add(int j, const float (*c)[4], const float *, float *r) const
    {
        add_scaled(r, two_halves(scale[j]), c[0]);
    }
};

template <> struct brick<BRICK_Q4_0> {
    enum { BLOCKS = 4, SUMS = 1, BYTES = BRICK_BYTES_Q4_0 };
    uint32_t q[8], scale[4];

    MEGA_FN void load(uint32_t at, int lane)
    {
        load_shared_words(q, at + 16 * lane);
        load_shared_words(q + 4, at + 512 + 16 * lane);
        load_shared_words(scale, at + BRICK_QUANTS + 16 * (lane >> 2));
    }
    MEGA_FN void fragment(int j, int f, uint32_t *a) const { nibble_fragment(q[2 * j + f], a); }
    MEGA_FN void add(int j, const float (*c)[4], const float *, float *r) const
    {
        add_scaled(r, two_halves(scale[j]), c[0]);
    }
};

template <> struct brick<BRICK_Q4_K> {
    enum { BLOCKS = 4, SUMS = 1, BYTES = BRICK_BYTES_Q4_K };
    uint32_t q[8], d[8], packed[4]; /* d and dmin of [block][row]; scale and minimum the same */

    MEGA_FN void load(uint32_t at, int lane)
    {
        uint32_t scales = at + BRICK_QUANTS + 16 * (lane >> 2);
        load_shared_words(q, at + 16 * lane);
        load_shared_words(q + 4, at + 512 + 16 * lane);
        load_shared_words(d, scales);
        load_shared_words(d + 4, scales + 128);
        load_shared_words(packed, scales + 256);
    }
    MEGA_FN void fragment(int j, int f, uint32_t *a) const { nibble_fragment(q[2 * j + f], a); }
    MEGA_FN void add(int j, const float (*c)[4], const float *sums, float *r) const
    {
        float2 low = two_halves(d[2 * j]), high = two_halves(d[2 * j + 1]);
        float2 scale = {low.x * byte_float<0>(packed[j]), high.x * byte_float<2>(packed[j])};
        float2 min = {low.y * byte_float<1>(packed[j]), high.y * byte_float<3>(packed[j])};
        add_scaled(r, scale, c[0]);
        r[0] = fmaf(-min.x, sums[0], r[0]);
        r[1] = fmaf(-min.x, sums[1], r[1]);
        r[2] = fmaf(-min.y, sums[0], r[2]);
        r[3] = fmaf(-min.y, sums[1], r[3]);
    }
};

template <> struct brick<BRICK_Q6_K> {
    enum { BLOCKS = 2, SUMS = 2, BYTES = BRICK_BYTES_Q6_K };
    uint32_t q[4], high[2], scale[4];

    MEGA_FN void load(uint32_t at, int lane)
    {
        load_shared_words(q, at + 16 * lane);
        load_shared_8(high, at + BRICK_HIGH + 8 * lane);
        load_shared_words(scale, at + BRICK_SCALES_Q6_K + 16 * (lane >> 2));
    }
    /* The two columns from the lane's i-th on, i even, of row g or g + 8. */
    MEGA_FN uint32_t levels(int j, int f, int high_row, int i) const
    {
        const int at = brick_high_shift(f, high_row, i) - 4;
        uint32_t low = q[2 * j + f] >> brick_nibble_shift(high_row, i);
        uint32_t top = at < 0 ? high[j] << -at : high[j] >> at;
        return (low & 0x000f000f) | (top & 0x00300030);
    }
    MEGA_FN void fragment(int j, int f, uint32_t *a) const
    {
        a[0] = levels(j, f, 0, 0);
        a[1] = levels(j, f, 1, 0);
        a[2] = levels(j, f, 0, 2);
        a[3] = levels(j, f, 1, 2);
    }
    template <int F> MEGA_FN float scale_of(uint32_t w) const
    {
        return two_halves(w).x * (byte_float<2 + F>(w ^ 0x80800000) - 128.0f);
    }
    MEGA_FN void add(int j, const float (*c)[4], const float *, float *r) const
    {
        uint32_t low = scale[2 * j], top = scale[2 * j + 1];
        add_scaled(r, make_float2(scale_of<0>(low), scale_of<0>(top)), c[0]);
        add_scaled(r, make_float2(scale_of<1>(low), scale_of<1>(top)), c[1]);
    }
};

/* r[block, or 0] += a brick times the vectors [block, or 0]. First all first fragments, then all
 * second ones: the matrix units take long for one, but the next may follow at once. */
template <int KIND, bool ACROSS>
MEGA_FN void multiply_brick(const brick<KIND> &w, const brick_vector<KIND> *x, float (*r)[4])
{
    const int blocks = brick<KIND>::BLOCKS, sums = brick<KIND>::SUMS;
    const float zero[2] = {0, 0};
    float c[blocks][sums][4];
    uint32_t a[4];
#pragma unroll
    for (int j = 0; j < blocks; j++) {
        const brick_vector<KIND> &v = x[ACROSS ? j : 0];
        w.fragment(j, 0, a);
        multiply_from(c[j][0], a, v.v[0], v.v[1], KIND == BRICK_Q4_K ? zero : v.from);
    }
#pragma unroll
    for (int j = 0; j < blocks; j++) {
        const brick_vector<KIND> &v = x[ACROSS ? j : 0];
        w.fragment(j, 1, a);
        if (sums == 2)
            multiply_from(c[j][sums - 1], a, v.v[2], v.v[3], v.from + v.BEGINNINGS - 2);
        else
            multiply_more(c[j][0], a, v.v[2], v.v[3]);
    }
#pragma unroll
    for (int j = 0; j < blocks; j++)
        w.add(j, c[j], x[ACROSS ? j : 0].from, r[ACROSS ? 0 : j]);
}

/* Row g's three columns to lanes with t = 0, which alone have a result. */
MEGA_FN float sum_planes(float c0, float c1, int t)
{
    float sum = t == 0 ? c0 + c1 : c0;
    return (sum + __shfl_down_sync(~0u, sum, 1)) * BRICK_UNIT;
}

/* ---- tiles of 16 rows ------------------------------------------------------------------------ */

enum { OVER_HIDDEN, OVER_HEAD };

MEGA_FN mega_tiles tiles_of(const mega_arguments &a, int over, int kind)
{
    return a.tiles[over][brick_blocks(kind) == 4];
}
MEGA_FN int tile_slices(const mega_tiles &shape)
{
    return min(shape.across, (int)MEGA_WARPS);
}

/* `tiles` tiles of one kind from the ring times the planes at `planes`: sums[slice][first + row].
 */
template <int KIND>
MEGA_FN void multiply_tiles(const mega_arguments &a, mega_block &b, const mega_tiles &shape,
                            int tiles, uint32_t planes, uint32_t pitch, int first)
{
    int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    int tile = warp * shape.inverse >> 8, slice = warp - tile * shape.across;
    const int blocks = brick<KIND>::BLOCKS, beginnings = brick_vector<KIND>::BEGINNINGS;
    const int step = 2 * BRICK_COLUMNS * blocks; /* bytes of a plane */
    uint32_t vector = planes + 2 * min(g, 2) * pitch + slice * step;
    uint32_t sums =
        b.own + a.shared.sums + 4 * (slice * a.shared.sum_pitch + first + tile * BRICK_ROWS + g);
    float from[blocks][beginnings]; /* of the columns of one of a tile's chunks, `held` */
    int held = -1;
#pragma unroll 1
    for (int i = 0; i < tiles; i += shape.beside) {
        float r[1][4] = {{0, 0, 0, 0}};
        bool mine = tile < shape.beside && i + tile < tiles;
#pragma unroll 1
        for (int k = 0; k < shape.chunks; k++) {
            brick_vector<KIND> x[blocks];
#pragma unroll
            for (int j = 0; j < blocks; j++)
                x[j].load(vector + k * MEGA_WARPS * step + 2 * BRICK_COLUMNS * j, t);
            brick<KIND> w;
            w.load(take_chunk(a, b) + warp * brick<KIND>::BYTES, b.lane);
            give_chunk(a, b);
            if (held != k) {
#pragma unroll
                for (int j = 0; j < blocks; j++) {
                    x[j].find_beginnings();
#pragma unroll
                    for (int n = 0; n < beginnings; n++)
                        from[j][n] = x[j].from[n];
                }
                held = k;
            }
#pragma unroll
            for (int j = 0; j < blocks; j++)
#pragma unroll
                for (int n = 0; n < beginnings; n++)
                    x[j].from[n] = from[j][n];
            if (mine && k * MEGA_WARPS + slice < shape.across) multiply_brick<KIND, true>(w, x, r);
        }
        float low = sum_planes(r[0][0], r[0][1], t), high = sum_planes(r[0][2], r[0][3], t);
        if (t || !mine) continue;
        store_shared(sums + 4 * BRICK_ROWS * i, low);
        store_shared(sums + 4 * BRICK_ROWS * i + 32, high);
    }
}

MEGA_FN void multiply_tiles_of(const mega_arguments &a, mega_block &b, int kind, int over,
                               int tiles, uint32_t planes, uint32_t pitch, int first)
{
    mega_tiles shape = tiles_of(a, over, kind);
    if (is_kind<BRICK_Q8_0>(kind))
        multiply_tiles<BRICK_Q8_0>(a, b, shape, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q4_0>(kind))
        multiply_tiles<BRICK_Q4_0>(a, b, shape, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q4_K>(kind))
        multiply_tiles<BRICK_Q4_K>(a, b, shape, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q6_K>(kind))
        multiply_tiles<BRICK_Q6_K>(a, b, shape, tiles, planes, pitch, first);
}

/* Tiles of an entry that lie one behind the other in one matrix. */
struct tile_run {
    int matrix, first, tiles;
};

/* The run from tile `tile` of `tiles` on: all, or of QKV those of queries, keys or values. */
template <int DIM>
MEGA_FN tile_run tile_run_from(const mega_arguments &a, const mega_entry &e, int matrix, int tile,
                               int tiles)
{
    int begin = e.in.units.begin;
    if (e.in.opcode != OP_NORM_QKV_ROPE) return {matrix, begin / BRICK_ROWS + tile, tiles - tile};
    qkv_pair p = qkv_pair_at<DIM>(a, begin + tile * (BRICK_ROWS / 2));
    int heads = p.kind == PAIR_QUERY ? a.group - p.member : 1;
    int left = heads * (DIM / BRICK_ROWS) - p.pair / (BRICK_ROWS / 2);
    return {p.kind, p.head * (DIM / BRICK_ROWS) + p.pair / (BRICK_ROWS / 2),
            min(left, tiles - tile)};
}

/* `tiles` tiles of 8 rows of an entry's matrix: as product.cuh has it. */
template <int DIM, int BLOCKS>
MEGA_FN void multiply_rows(const mega_arguments &a, mega_block &b, const mega_entry &e, int matrix,
                           int tiles, int first)
{
    tiles = (tiles + 1) / 2;
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        multiply_tiles_of(a, b, e.weights.kinds[run.matrix], OVER_HIDDEN, run.tiles,
                          b.own + a.shared.planes, a.shared.plane, first + tile * BRICK_ROWS);
        tile += run.tiles;
    }
}

/* Parts of a row's sum. */
MEGA_FN int row_slices(const mega_arguments &a, const mega_entry &e, int matrix)
{
    return tile_slices(tiles_of(a, OVER_HIDDEN, e.weights.kinds[matrix]));
}

/* A KV head's columns of W_o times its heads' outputs: sums[slice of columns][row]. */
template <int DIM>
MEGA_FN int product_heads(const mega_arguments &a, mega_block &b, const mega_entry &e, int rows)
{
    int kind = e.weights.kinds[0];
    multiply_tiles_of(a, b, kind, OVER_HEAD, (rows + BRICK_ROWS - 1) / BRICK_ROWS,
                      b.own + a.shared.heads, a.shared.head_plane, 0);
    return tile_slices(tiles_of(a, OVER_HEAD, kind));
}

/* ---- W_down ---------------------------------------------------------------------------------- */

/* Outputs [first, first + 2048) of the features, 32 of them at a time, to out[2048]. */
template <int KIND>
MEGA_FN void add_features(const mega_arguments &a, mega_block &b, int groups, int first, float *out)
{
    const int blocks = brick<KIND>::BLOCKS, each = BRICK_ROWS * blocks;
    int g = b.lane >> 2, t = b.lane & 3;
    uint32_t plane = b.own + a.shared.features + 2 * min(g, 2) * a.shared.feature_plane;
#pragma unroll 1
    for (int from = first; from < min(a.hidden, first + MEGA_BLOCK); from += MEGA_WARPS * each) {
        float r[blocks][4];
#pragma unroll
        for (int j = 0; j < blocks; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                r[j][i] = 0;
#pragma unroll 1
        for (int group = 0; group < groups; group++) {
            brick_vector<KIND> x;
            brick<KIND> w;
            x.load(plane + 2 * BRICK_COLUMNS * group, t);
            x.find_beginnings();
            w.load(take_chunk(a, b) + b.warp * brick<KIND>::BYTES, b.lane);
            give_chunk(a, b);
            multiply_brick<KIND, false>(w, &x, r);
        }
#pragma unroll
        for (int j = 0; j < blocks; j++) {
            float low = sum_planes(r[j][0], r[j][1], t), high = sum_planes(r[j][2], r[j][3], t);
            int o = from - first + b.warp * each + j * BRICK_ROWS + g;
            if (t || first + o >= a.hidden) continue;
            out[o] = low;
            out[o + 8] = high;
        }
    }
}

/* `rows` features' part of the outputs from `first` on: as product.cuh has it. */
MEGA_FN void product_transposed(const mega_arguments &a, mega_block &b, const mega_entry &e,
                                int rows, int first, float *out)
{
    int groups = rows / BRICK_COLUMNS, kind = e.weights.kinds[2];
    if (is_kind<BRICK_Q8_0>(kind))
        add_features<BRICK_Q8_0>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q4_0>(kind))
        add_features<BRICK_Q4_0>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q4_K>(kind))
        add_features<BRICK_Q4_K>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q6_K>(kind))
        add_features<BRICK_Q6_K>(a, b, groups, first, out);
}

#endif
