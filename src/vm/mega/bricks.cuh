/* Quantised weights times vectors, by the matrix units.
 *
 * Levels become bf16 without arithmetic: an integer up to 255 in the low bits of a bf16 is that
 * integer times 2^-133, below the smallest normal number and seamlessly above it. The vector's
 * planes are stored times 2^96 to meet it, and where a column's nibble is taken at bits 4..7 of a
 * word, divided by 16: columns 2 and 3 of every four. Products are exact, sums float32; a block's
 * sum is scaled as it is added to its row's. Levels are counted from the lowest: what that is too
 * much, the zero level times the sum of the vector's 32 columns, is added with the other sign; the
 * matrix units find that too. The planes are in columns 0, 2 and 4 of the other operand, so that a
 * lane has one of them: t is its plane, and results with t = 3 are of no use.
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

/* c (16, 8) = a * b */
MEGA_FN void multiply_first(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
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

/* A lane's part of 32 columns: of each fragment two registers; and what the lane's sums lack, in
 * units of a scale (of Q4_K: of a minimum; of Q6_K: for each fragment). */
template <int KIND> struct brick_vector {
    enum { SUMS = KIND == BRICK_Q6_K ? 2 : 1 };
    uint32_t v[4];
    float lack[SUMS];

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
    MEGA_FN void find_lack()
    {
        /* bf16 -128, -8 (and 16 times that), -1, -32, times 2^-133 */
        const uint32_t one = KIND == BRICK_Q8_0   ? 0x80808080
                             : KIND == BRICK_Q4_0 ? 0x80088008
                             : KIND == BRICK_Q4_K ? 0x80018001
                                                  : 0x80208020;
        const uint32_t two = KIND == BRICK_Q4_0   ? 0x80808080
                             : KIND == BRICK_Q4_K ? 0x80108010
                                                  : one;
        const uint32_t a[4] = {one, one, two, two};
        float c[4];
        multiply_first(c, a, v[0], v[1]);
        lack[0] = c[0];
        if (SUMS == 2)
            multiply_first(c, a, v[2], v[3]);
        else
            multiply_more(c, a, v[2], v[3]);
        lack[SUMS - 1] = c[0];
    }
};

/* The planes' addresses: lane g's column is a plane's. */
MEGA_FN uint32_t lane_plane(uint32_t planes, uint32_t pitch, int g)
{
    return planes + 2 * min(g >> 1, MEGA_PARTS - 1) * pitch;
}

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

/* r (rows g and g + 8) += scales (of the two rows) * what c has, and what it lacks */
MEGA_FN void add_scaled(float *r, float2 scale, const float *c, float lack)
{
    r[0] = fmaf(scale.x, lack, fmaf(scale.x, c[0], r[0]));
    r[1] = fmaf(scale.y, lack, fmaf(scale.y, c[2], r[1]));
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
    MEGA_FN void fragment(int j, int f, uint32_t *a) const
    {
        uint32_t low = q[4 * j + 2 * f], high = q[4 * j + 2 * f + 1];
        a[0] = __byte_perm(low, 0, 0x4140);
        a[1] = __byte_perm(high, 0, 0x4140);
        a[2] = __byte_perm(low, 0, 0x4342);
        a[3] = __byte_perm(high, 0, 0x4342);
    }
    MEGA_FN void add(int j, const float (*c)[4], const float *lack, float *r) const
    {
        add_scaled(r, two_halves(scale[j]), c[0], lack[0]);
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
    MEGA_FN void fragment(int j, int f, uint32_t *a) const { nibble_fragment(q[2 * j + f], a); }
    MEGA_FN void add(int j, const float (*c)[4], const float *lack, float *r) const
    {
        add_scaled(r, two_halves(scale[j]), c[0], lack[0]);
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
    MEGA_FN void fragment(int j, int f, uint32_t *a) const { nibble_fragment(q[2 * j + f], a); }
    MEGA_FN void add(int j, const float (*c)[4], const float *lack, float *r) const
    {
        float2 low = two_halves(d[2 * j]), high = two_halves(d[2 * j + 1]);
        float scale = low.x * byte_float<0>(packed[j]), min = low.y * byte_float<1>(packed[j]);
        r[0] = fmaf(min, lack[0], fmaf(scale, c[0][0], r[0]));
        scale = high.x * byte_float<2>(packed[j]), min = high.y * byte_float<3>(packed[j]);
        r[1] = fmaf(min, lack[0], fmaf(scale, c[0][2], r[1]));
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
    MEGA_FN void add(int j, const float (*c)[4], const float *lack, float *r) const
    {
        uint32_t low = scale[2 * j], top = scale[2 * j + 1];
        add_scaled(r, make_float2(scale_of<0>(low), scale_of<0>(top)), c[0], lack[0]);
        add_scaled(r, make_float2(scale_of<1>(low), scale_of<1>(top)), c[1], lack[1]);
    }
};

/* r[0] and r[1] += blocks `first` and the next times their vectors. Both first fragments, then both
 * second ones: the matrix units take long for one, but the next may follow at once. */
template <int KIND>
MEGA_FN void multiply_blocks(const brick<KIND> &w, int first, const brick_vector<KIND> &x,
                             const brick_vector<KIND> &y, float *r, float *s)
{
    const int sums = brick_vector<KIND>::SUMS;
    const brick_vector<KIND> *const v[2] = {&x, &y};
    float c[2][sums][4];
    uint32_t a[4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        w.fragment(first + j, 0, a);
        multiply_first(c[j][0], a, v[j]->v[0], v[j]->v[1]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        w.fragment(first + j, 1, a);
        if (sums == 2)
            multiply_first(c[j][sums - 1], a, v[j]->v[2], v[j]->v[3]);
        else
            multiply_more(c[j][0], a, v[j]->v[2], v[j]->v[3]);
    }
    w.add(first, c[0], x.lack, r);
    w.add(first + 1, c[1], y.lack, s);
}

/* The planes' sums of rows g and g + 8 from all lanes: of row g where t is even, of row g + 8 where
 * it is odd. `unit`: lane_unit(). */
MEGA_FN float lane_unit(int t)
{
    return t < MEGA_PARTS ? BRICK_UNIT : 0;
}
MEGA_FN float sum_planes(const float *r, int t, float unit)
{
    float low = r[0] * unit, high = r[1] * unit;
    float sum = (t & 1 ? high : low) + __shfl_xor_sync(~0u, t & 1 ? low : high, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
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
    const int blocks = brick<KIND>::BLOCKS, parts = brick_vector<KIND>::SUMS;
    const int step = 2 * BRICK_COLUMNS * blocks; /* bytes of a plane */
    uint32_t vector = lane_plane(planes, pitch, g) + slice * step;
    int row = first + tile * BRICK_ROWS + g + 8 * (t & 1);
    uint32_t sums = b.own + a.shared.sums + 4 * (slice * a.shared.sum_pitch + row);
    float unit = lane_unit(t), lack[blocks][parts]; /* of the columns of a tile's chunk `held` */
    int held = -1;
#pragma unroll 1
    for (int i = 0; i < tiles; i += shape.beside) {
        float r[2] = {0, 0};
        bool mine = tile < shape.beside && i + tile < tiles;
#pragma unroll 1
        for (int k = 0; k < shape.chunks; k++) {
            uint32_t columns = vector + k * MEGA_WARPS * step;
            brick_vector<KIND> x[2];
            brick<KIND> w;
            if (held != k) {
#pragma unroll
                for (int j = 0; j < blocks; j++) {
                    x[0].load(columns + 2 * BRICK_COLUMNS * j, t);
                    x[0].find_lack();
#pragma unroll
                    for (int n = 0; n < parts; n++)
                        lack[j][n] = x[0].lack[n];
                }
                held = k;
            }
            for (int j = 0; j < 2; j++)
                x[j].load(columns + 2 * BRICK_COLUMNS * j, t);
            w.load(take_chunk(a, b) + warp * brick<KIND>::BYTES, b.lane);
            give_chunk(a, b);
            bool busy = mine && k * MEGA_WARPS + slice < shape.across;
#pragma unroll
            for (int first = 0; first < blocks; first += 2) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if (first) x[j].load(columns + 2 * BRICK_COLUMNS * (first + j), t);
#pragma unroll
                    for (int n = 0; n < parts; n++)
                        x[j].lack[n] = lack[first + j][n];
                }
                if (busy) multiply_blocks<KIND>(w, first, x[0], x[1], r, r);
            }
        }
        float sum = sum_planes(r, t, unit);
        if (t < 2 && mine) store_shared(sums + 4 * BRICK_ROWS * i, sum);
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
    uint32_t plane = lane_plane(b.own + a.shared.features, a.shared.feature_plane, g);
    float unit = lane_unit(t);
#pragma unroll 1
    for (int from = first; from < min(a.hidden, first + MEGA_BLOCK); from += MEGA_WARPS * each) {
        float r[blocks][2];
#pragma unroll
        for (int j = 0; j < blocks; j++)
            r[j][0] = r[j][1] = 0;
#pragma unroll 1
        for (int group = 0; group < groups; group++) {
            brick_vector<KIND> x;
            brick<KIND> w;
            x.load(plane + 2 * BRICK_COLUMNS * group, t);
            x.find_lack();
            w.load(take_chunk(a, b) + b.warp * brick<KIND>::BYTES, b.lane);
            give_chunk(a, b);
#pragma unroll
            for (int j = 0; j < blocks; j += 2)
                multiply_blocks<KIND>(w, j, x, x, r[j], r[j + 1]);
        }
#pragma unroll
        for (int j = 0; j < blocks; j++) {
            float sum = sum_planes(r[j], t, unit);
            int o = from - first + b.warp * each + j * BRICK_ROWS + g + 8 * (t & 1);
            if (t < 2 && first + o < a.hidden) out[o] = sum;
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
