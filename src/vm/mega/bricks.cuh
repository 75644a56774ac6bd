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
 * this lane's two columns of them (of Q4_K: the sums of the vector's columns, per fragment of
 * Q6_K).
 */
template <int KIND> struct brick_vector {
    uint32_t v[4];
    float from[KIND == BRICK_Q6_K ? 4 : 2];

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

/* A lane's part of a brick in registers. */
template <int KIND> struct brick;

template <> struct brick<BRICK_Q8_0> {
    enum { BLOCKS = 2, BYTES = BRICK_BYTES_Q8_0 };
    uint32_t q[8], scale[2];

    MEGA_FN void load(uint32_t at, int lane)
    {
        load_shared_words(q, at + 16 * lane);
        load_shared_words(q + 4, at + 512 + 16 * lane);
        load_shared_8(scale, at + BRICK_QUANTS + 8 * (lane >> 2));
    }
    MEGA_FN void multiply_block(int j, const brick_vector<BRICK_Q8_0> &x, float *r) const
    {
        float c[4];
#pragma unroll
        for (int f = 0; f < 2; f++) {
            uint32_t g = q[4 * j + 2 * f], g8 = q[4 * j + 2 * f + 1];
            const uint32_t a[4] = {__byte_perm(g, 0, 0x4140), __byte_perm(g8, 0, 0x4140),
                                   __byte_perm(g, 0, 0x4342), __byte_perm(g8, 0, 0x4342)};
            if (f == 0)
                multiply_from(c, a, x.v[0], x.v[1], x.from);
            else
                multiply_more(c, a, x.v[2], x.v[3]);
        }
        add_scaled(r, two_halves(scale[j]), c);
    }
};

template <> struct brick<BRICK_Q4_0> {
    enum { BLOCKS = 4, BYTES = BRICK_BYTES_Q4_0 };
    uint32_t q[8], scale[4];

    MEGA_FN void load(uint32_t at, int lane)
    {
        load_shared_words(q, at + 16 * lane);
        load_shared_words(q + 4, at + 512 + 16 * lane);
        load_shared_words(scale, at + BRICK_QUANTS + 16 * (lane >> 2));
    }
    MEGA_FN void multiply_block(int j, const brick_vector<BRICK_Q4_0> &x, float *r) const
    {
        uint32_t a[4];
        float c[4];
        nibble_fragment(q[2 * j], a);
        multiply_from(c, a, x.v[0], x.v[1], x.from);
        nibble_fragment(q[2 * j + 1], a);
        multiply_more(c, a, x.v[2], x.v[3]);
        add_scaled(r, two_halves(scale[j]), c);
    }
};

template <> struct brick<BRICK_Q4_K> {
    enum { BLOCKS = 4, BYTES = BRICK_BYTES_Q4_K };
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
    MEGA_FN void multiply_block(int j, const brick_vector<BRICK_Q4_K> &x, float *r) const
    {
        const float zero[2] = {0, 0};
        uint32_t a[4];
        float c[4];
        nibble_fragment(q[2 * j], a);
        multiply_from(c, a, x.v[0], x.v[1], zero);
        nibble_fragment(q[2 * j + 1], a);
        multiply_more(c, a, x.v[2], x.v[3]);
        float2 low = two_halves(d[2 * j]), high = two_halves(d[2 * j + 1]);
        float2 scale = {low.x * byte_float<0>(packed[j]), high.x * byte_float<2>(packed[j])};
        float2 min = {low.y * byte_float<1>(packed[j]), high.y * byte_float<3>(packed[j])};
        add_scaled(r, scale, c);
        r[0] = fmaf(-min.x, x.from[0], r[0]);
        r[1] = fmaf(-min.x, x.from[1], r[1]);
        r[2] = fmaf(-min.y, x.from[0], r[2]);
        r[3] = fmaf(-min.y, x.from[1], r[3]);
    }
};

template <> struct brick<BRICK_Q6_K> {
    enum { BLOCKS = 2, BYTES = BRICK_BYTES_Q6_K };
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
        const int at = 8 * f + 4 * high_row + 2 * (i >> 1) - 4;
        uint32_t low = q[2 * j + f] >> brick_nibble_shift(high_row, i);
        uint32_t top = at < 0 ? high[j] << -at : high[j] >> at;
        return (low & 0x000f000f) | (top & 0x00300030);
    }
    template <int F> MEGA_FN float signed_scale(uint32_t w) const
    {
        return byte_float<2 + F>(w ^ 0x80800000) - 128.0f;
    }
    template <int F>
    MEGA_FN void multiply_fragment(int j, const brick_vector<BRICK_Q6_K> &x, float *r) const
    {
        const uint32_t a[4] = {levels(j, F, 0, 0), levels(j, F, 1, 0), levels(j, F, 0, 2),
                               levels(j, F, 1, 2)};
        float c[4];
        multiply_from(c, a, x.v[2 * F], x.v[2 * F + 1], x.from + 2 * F);
        uint32_t low = scale[2 * j], top = scale[2 * j + 1];
        float2 s = {two_halves(low).x * signed_scale<F>(low),
                    two_halves(top).x * signed_scale<F>(top)};
        add_scaled(r, s, c);
    }
    MEGA_FN void multiply_block(int j, const brick_vector<BRICK_Q6_K> &x, float *r) const
    {
        multiply_fragment<0>(j, x, r);
        multiply_fragment<1>(j, x, r);
    }
};

/* Row g's three columns to lanes with t = 0, which alone have a result. */
MEGA_FN float sum_planes(float c0, float c1, int t)
{
    float sum = t == 0 ? c0 + c1 : c0;
    return (sum + __shfl_down_sync(~0u, sum, 1)) * BRICK_UNIT;
}

/* ---- tiles of 16 rows ------------------------------------------------------------------------ */

/* How tiles `across` bricks wide lie in chunks of up to 16 bricks, one a warp: a wide tile takes
 * several chunks, a chunk several narrow tiles. */
struct tile_chunks {
    int across, chunks, beside;
    MEGA_FN tile_chunks(int kind, int columns)
        : across(bricks_across(kind, columns)), chunks((across + MEGA_WARPS - 1) / MEGA_WARPS),
          beside(across < MEGA_WARPS ? MEGA_WARPS / across : 1)
    {
    }
    /* Parts of a row's sum. */
    MEGA_FN int slices() const { return min(across, (int)MEGA_WARPS); }
};

/* `tiles` tiles of one kind from the ring times the planes at `planes`: sums[slice][first + row].
 */
template <int KIND>
MEGA_FN void multiply_tiles(const mega_arguments &a, mega_block &b, tile_chunks shape, int tiles,
                            uint32_t planes, uint32_t pitch, int first)
{
    int g = b.lane >> 2, t = b.lane & 3, beside = shape.across < MEGA_WARPS;
    int tile = beside ? b.warp / shape.across : 0, slice = b.warp - tile * shape.across;
    const int step = 2 * BRICK_COLUMNS * brick<KIND>::BLOCKS; /* bytes of a plane */
    uint32_t vector = planes + 2 * min(g, 2) * pitch + slice * step;
    uint32_t sums =
        b.own + a.shared.sums + 4 * (slice * a.shared.sum_pitch + first + tile * BRICK_ROWS + g);
    brick_vector<KIND> x[brick<KIND>::BLOCKS];
    int held = -1; /* the chunk of a tile whose columns are in x */
#pragma unroll 1
    for (int i = 0; i < tiles; i += shape.beside) {
        float r[4] = {0, 0, 0, 0};
        bool mine = tile < shape.beside && i + tile < tiles;
#pragma unroll 1
        for (int k = 0; k < shape.chunks; k++) {
            bool busy = mine && k * MEGA_WARPS + slice < shape.across;
            uint32_t at = take_chunk(a, b) + b.warp * brick<KIND>::BYTES;
            brick<KIND> w;
            w.load(at, b.lane);
            give_chunk(a, b);
            if (!busy) continue;
            if (held != k) {
#pragma unroll
                for (int j = 0; j < brick<KIND>::BLOCKS; j++)
                    x[j].load(vector + k * MEGA_WARPS * step + 2 * BRICK_COLUMNS * j, t);
                held = k;
            }
#pragma unroll
            for (int j = 0; j < brick<KIND>::BLOCKS; j++)
                w.multiply_block(j, x[j], r);
        }
        float low = sum_planes(r[0], r[1], t), high = sum_planes(r[2], r[3], t);
        if (t || !mine) continue;
        store_shared(sums + 4 * BRICK_ROWS * i, low);
        store_shared(sums + 4 * BRICK_ROWS * i + 32, high);
    }
}

MEGA_FN void multiply_tiles_of(const mega_arguments &a, mega_block &b, int kind, int columns,
                               int tiles, uint32_t planes, uint32_t pitch, int first)
{
    tile_chunks shape(kind, columns);
    switch (kind) {
    case BRICK_Q8_0:
        return multiply_tiles<BRICK_Q8_0>(a, b, shape, tiles, planes, pitch, first);
    case BRICK_Q4_0:
        return multiply_tiles<BRICK_Q4_0>(a, b, shape, tiles, planes, pitch, first);
    case BRICK_Q4_K:
        return multiply_tiles<BRICK_Q4_K>(a, b, shape, tiles, planes, pitch, first);
    default:
        return multiply_tiles<BRICK_Q6_K>(a, b, shape, tiles, planes, pitch, first);
    }
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
        multiply_tiles_of(a, b, e.weights.kinds[run.matrix], a.hidden, run.tiles,
                          b.own + a.shared.planes, a.shared.plane, first + tile * BRICK_ROWS);
        tile += run.tiles;
    }
}

/* Parts of a row's sum. */
MEGA_FN int row_slices(const mega_arguments &a, const mega_entry &e, int matrix)
{
    return tile_chunks(e.weights.kinds[matrix], a.hidden).slices();
}

/* A KV head's columns of W_o times its heads' outputs: sums[slice of columns][row]. */
template <int DIM>
MEGA_FN int product_heads(const mega_arguments &a, mega_block &b, const mega_entry &e, int rows)
{
    int kind = e.weights.kinds[0], columns = a.group * DIM;
    multiply_tiles_of(a, b, kind, columns, (rows + BRICK_ROWS - 1) / BRICK_ROWS,
                      b.own + a.shared.heads, a.shared.head_plane, 0);
    return tile_chunks(kind, columns).slices();
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
            uint32_t at = take_chunk(a, b) + b.warp * brick<KIND>::BYTES;
            brick<KIND> w;
            w.load(at, b.lane);
            give_chunk(a, b);
            brick_vector<KIND> x;
            x.load(plane + 2 * BRICK_COLUMNS * group, t);
#pragma unroll
            for (int j = 0; j < blocks; j++)
                w.multiply_block(j, x, r[j]);
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
    int groups = rows / BRICK_COLUMNS;
    switch (e.weights.kinds[2]) {
    case BRICK_Q8_0:
        return add_features<BRICK_Q8_0>(a, b, groups, first, out);
    case BRICK_Q4_0:
        return add_features<BRICK_Q4_0>(a, b, groups, first, out);
    case BRICK_Q4_K:
        return add_features<BRICK_Q4_K>(a, b, groups, first, out);
    default:
        return add_features<BRICK_Q6_K>(a, b, groups, first, out);
    }
}

#endif
