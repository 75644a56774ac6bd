/* Quantised weights times vectors, on the integer tensor cores.
 *
 * Quants are the bytes of one operand; the vector's digits (digits.cuh) are columns 0, 2, 4 and 6
 * of the other, so lane t of a group of four has digit t. A block's sums of products are exact;
 * they become float32 when they are multiplied by their scale and added to the row's sum. Six-bit
 * quants are in bits 2 to 7 of a byte, four times too large; the vector's unit makes up for it. Two
 * rows of Q4_0 share bytes: the first row's sum is the byte's sum less the second row's. Types with
 * a minimum, and Q4_0 for its zero, need the vector's own sums; the tensor cores compute them once
 * for all rows.
 */
#ifndef QUIPU_VM_MEGA_BRICKS_CUH
#define QUIPU_VM_MEGA_BRICKS_CUH

#include "vm/mega/block.cuh"
#include "vm/mega/bricks.h"

/* Whether a matrix is of a kind: a constant in kernels that read one kind only. */
template <int KIND> MEGA_FN bool is_kind(int kind)
{
    return MEGA_BRICKS == 1 << KIND || ((MEGA_BRICKS >> KIND & 1) && kind == KIND);
}

/* c (16, 8) = a (16, 32) * b (32, 8) in bytes; SIGNED: a's have a sign, as b's always have. */
template <bool SIGNED> MEGA_FN void multiply_bytes(int *c, const uint32_t *a, const uint32_t *b)
{
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
/* c (16, 8) = a (16, 16) * b (16, 8) */
MEGA_FN void multiply_half(int *c, const uint32_t *a, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(0));
}

MEGA_FN float2 two_halves(uint32_t w)
{
    return __half22float2(*(const __half2 *)&w);
}
/* A byte of a word, as a float. */
template <int BYTE> MEGA_FN float byte_float(uint32_t w)
{
    return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7440 + BYTE)) - 8388608.0f;
}

/* ---- the vector ------------------------------------------------------------------------------ */

/* Planes of digits, from this lane's place in its digit's plane. */
struct brick_digits {
    uint32_t at, units;
    float weight; /* of the lane's digit */
};
MEGA_FN brick_digits brick_digits_at(uint32_t planes, uint32_t pitch, int lane)
{
    int digit = lane >> 3;
    return {planes + digit * pitch + 16 * (lane & 3), planes + DIGITS * pitch,
            __uint_as_float((127 + 8 * (lane & 3)) << 23)};
}

/* FACTOR times the sum of a lane's digit over 32 columns. */
template <int FACTOR> MEGA_FN int sum_digits(const uint32_t *v)
{
    const uint32_t four = 0x01010101u * (uint8_t)FACTOR, a[4] = {four, four, four, four};
    int c[4];
    multiply_bytes<true>(c, a, v);
    return c[0];
}

/* ---- bricks: a lane's part in registers ------------------------------------------------------ */

/* A block's four registers of quants: of rows g, of rows g + 8, then the same of its second half.
 * joined_nibbles(): row g's bytes have row g + 8's nibbles 16 times over, row g + 8's bytes have
 * those alone; row g's sum is the difference. plain_nibbles(): one row each. */
MEGA_FN void joined_nibbles(const uint32_t *w, uint32_t *a)
{
#pragma unroll
    for (int f = 0; f < 2; f++) {
        a[2 * f] = w[f];
        a[2 * f + 1] = w[f] & 0xf0f0f0f0;
    }
}
MEGA_FN void plain_nibbles(const uint32_t *w, uint32_t *a)
{
#pragma unroll
    for (int f = 0; f < 2; f++) {
        a[2 * f] = w[f] & 0x0f0f0f0f;
        a[2 * f + 1] = w[f] >> 4 & 0x0f0f0f0f;
    }
}
MEGA_FN void load_nibbles(uint32_t *q, uint32_t at, int lane)
{
    load_shared_words(q, at + 16 * lane);
    load_shared_words(q + 4, at + 512 + 16 * lane);
}

/* add(): r (rows g and g + 8) += block j times the vector's `v`, in multiples of `unit`, for row g
 * + 8 of high_unit(unit). `sum`: sum() of v. AT_ONCE: bricks that a warp multiplies together. */
template <int KIND> struct brick;

/* For kinds that need no sum of the vector. */
struct brick_without_sum {
    typedef int sum_type;
    static MEGA_FN int sum(const uint32_t *) { return 0; }
    static MEGA_FN float high_unit() { return 1; }
};
/* For kinds with a minimum: the vector's sum times the minimum is part of the row's sum. */
struct brick_with_minimum {
    typedef float sum_type;
    static MEGA_FN float sum(const uint32_t *v) { return (float)sum_digits<1>(v); }
    static MEGA_FN float high_unit() { return 1; }
};

template <> struct brick<BRICK_Q8_0> : brick_without_sum {
    enum { AT_ONCE = 1 };
    uint32_t q[16], scale[4];

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
#pragma unroll
        for (int j = 0; j < BRICK_BLOCKS; j++)
            load_shared_words(q + 4 * j, at + 512 * j + 16 * lane);
        load_shared_words(scale, at + 2 * BRICK_NIBBLES + 16 * (lane >> 2));
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int, float *r) const
    {
        int c[4];
        multiply_bytes<true>(c, q + 4 * j, v);
        float2 d = two_halves(scale[j]);
        r[0] = fmaf(d.x * unit, (float)c[0], r[0]);
        r[1] = fmaf(d.y * unit, (float)c[2], r[1]);
    }
};

template <> struct brick<BRICK_Q4_0> {
    typedef int sum_type;
    enum { AT_ONCE = 2 };
    uint32_t q[8], scale[4];

    static MEGA_FN float unit() { return 1; }
    static MEGA_FN float high_unit() { return 1 / 16.0f; }
    static MEGA_FN int sum(const uint32_t *v) { return sum_digits<-8>(v); }
    MEGA_FN void load(uint32_t at, int lane)
    {
        load_nibbles(q, at, lane);
        load_shared_words(scale, at + BRICK_NIBBLES + 16 * (lane >> 2));
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int sum, float *r) const
    {
        uint32_t a[4];
        int c[4];
        joined_nibbles(q + 2 * j, a);
        multiply_bytes<true>(c, a, v);
        float2 d = two_halves(scale[j]);
        r[0] = fmaf(d.x * unit, (float)(c[0] - c[2] + sum), r[0]);
        r[1] = fmaf(d.y * unit, (float)c[2], r[1]);
    }
};

template <> struct brick<BRICK_Q4_1> : brick_with_minimum {
    enum { AT_ONCE = 1 };
    uint32_t q[8], d[8]; /* d and m of [block][row] */

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
        uint32_t scales = at + BRICK_NIBBLES + 16 * (lane >> 2);
        load_nibbles(q, at, lane);
        load_shared_words(d, scales);
        load_shared_words(d + 4, scales + 128);
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, float sum, float *r) const
    {
        uint32_t a[4];
        int c[4];
        plain_nibbles(q + 2 * j, a);
        multiply_bytes<false>(c, a, v);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 s = two_halves(d[2 * j + h]);
            r[h] = fmaf(s.y * unit, sum, fmaf(s.x * unit, (float)c[2 * h], r[h]));
        }
    }
};

template <> struct brick<BRICK_Q4_K> : brick_with_minimum {
    enum { AT_ONCE = 1 };
    uint32_t q[8], d[8], packed[4]; /* d and dmin of [block][row]; scale and minimum the same */

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
        uint32_t scales = at + BRICK_NIBBLES + 16 * (lane >> 2);
        load_nibbles(q, at, lane);
        load_shared_words(d, scales);
        load_shared_words(d + 4, scales + 128);
        load_shared_words(packed, scales + 256);
    }
    template <int H> MEGA_FN void add_row(int j, int c, float unit, float sum, float *r) const
    {
        float2 s = two_halves(d[2 * j + H]);
        float scale = s.x * byte_float<2 * H>(packed[j]);
        float min = s.y * byte_float<2 * H + 1>(packed[j]);
        r[H] = fmaf(min * -unit, sum, fmaf(scale * unit, (float)c, r[H]));
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, float sum, float *r) const
    {
        uint32_t a[4];
        int c[4];
        plain_nibbles(q + 2 * j, a);
        multiply_bytes<false>(c, a, v);
        add_row<0>(j, c[0], unit, sum, r);
        add_row<1>(j, c[2], unit, sum, r);
    }
};

template <> struct brick<BRICK_Q6_K> : brick_without_sum {
    enum { AT_ONCE = 1 };
    uint32_t q[8], high[4], scale[8]; /* scale: [block][row] */

    static MEGA_FN float unit() { return 1 / 4.0f; }
    MEGA_FN void load(uint32_t at, int lane)
    {
        load_nibbles(q, at, lane);
        load_shared_words(high, at + BRICK_HIGH + 16 * lane);
#pragma unroll
        for (int j = 0; j < BRICK_BLOCKS; j++)
            load_shared_8(scale + 2 * j, at + BRICK_SCALES_Q6_K + 64 * j + 8 * (lane >> 2));
    }
    template <int F> MEGA_FN float scale_of(uint32_t w, float unit) const
    {
        return two_halves(w).x * (byte_float<2 + F>(w ^ 0x80800000) - 128.0f) * unit;
    }
    template <int F> MEGA_FN void add_half(int j, const uint32_t *v, float unit, float *r) const
    {
        uint32_t low = q[2 * j + F], top = high[j];
        const uint32_t a[2] = {(low << 2 & 0x3c3c3c3c) | ((F ? top << 2 : top << 6) & 0xc0c0c0c0),
                               (low >> 2 & 0x3c3c3c3c) | ((F ? top : top << 4) & 0xc0c0c0c0)};
        int c[4];
        multiply_half(c, a, v[F]);
        r[0] = fmaf(scale_of<F>(scale[2 * j], unit), (float)c[0], r[0]);
        r[1] = fmaf(scale_of<F>(scale[2 * j + 1], unit), (float)c[2], r[1]);
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int, float *r) const
    {
        add_half<0>(j, v, unit, r);
        add_half<1>(j, v, unit, r);
    }
};

/* ---- tiles of 16 rows ------------------------------------------------------------------------ */

enum { OVER_HIDDEN, OVER_HEAD };

MEGA_FN mega_tiles tiles_of(const mega_arguments &a, int over)
{
    return a.tiles[over];
}
MEGA_FN int tile_slices(const mega_tiles &shape)
{
    return min(shape.across, (int)MEGA_WARPS);
}

/* The vector's 128 columns, or W_down's 32 features, as a lane has them. */
template <int KIND, bool OWN_UNITS> struct brick_vector {
    uint32_t v[2 * BRICK_BLOCKS];
    float unit, units[OWN_UNITS ? BRICK_BLOCKS : 1];
    typename brick<KIND>::sum_type sums[BRICK_BLOCKS];

    MEGA_FN void load(const brick_digits &x, int slice)
    {
        load_shared_words(v, x.at + BRICK_WIDTH * slice);
        load_shared_words(v + 4, x.at + BRICK_WIDTH * slice + 64);
        unit = brick<KIND>::unit() * x.weight;
        if (OWN_UNITS) {
            uint32_t w[4];
            load_shared_words(w, x.units + 16 * slice);
#pragma unroll
            for (int j = 0; j < BRICK_BLOCKS; j++)
                units[j] = __uint_as_float(w[j]);
        } else {
            unit *= __uint_as_float(load_shared(x.units + 4 * slice));
        }
#pragma unroll
        for (int j = 0; j < BRICK_BLOCKS; j++)
            sums[j] = brick<KIND>::sum(v + 2 * j);
    }
};

/* Bricks of a kind that a warp multiplies together, one from each of the next chunks; if there are
 * fewer chunks the last is there more than once. */
template <int KIND, int N> struct brick_set {
    brick<KIND> of[N];

    MEGA_FN void take(const mega_arguments &a, mega_block &b, int there, int warp)
    {
        ring_place places[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            places[n] = n ? places[n - 1] : b.place;
            if (n && n < there) places[n].advance(a.stages);
            if (n < there)
                wait_chunk(b.own + a.shared.full + 8 * places[n].stage, places[n].parity);
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            of[n].load(b.ring + places[n].stage * stage_bytes(a) + warp * brick_bytes(KIND),
                       b.lane);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < N; n++)
            if (signals(b) && n < there)
                barrier_arrive(b.own + a.shared.empty + 8 * places[n].stage);
        b.place = places[N - 1];
        b.place.advance(a.stages);
    }
};

/* Sums each of `r` over a group's four lanes; lane t gets r[t % N]. */
template <int N> MEGA_FN float sum_lanes(const float *r, int t)
{
    float s[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; n++)
        s[n] = (t & 1 ? r[2 * n + 1] : r[2 * n]) +
               __shfl_xor_sync(~0u, t & 1 ? r[2 * n] : r[2 * n + 1], 1);
    if (N == 2) return s[0] + __shfl_xor_sync(~0u, s[0], 2);
    return (t & 2 ? s[N / 2 - 1] : s[0]) + __shfl_xor_sync(~0u, t & 2 ? s[0] : s[N / 2 - 1], 2);
}

/* `tiles` tiles of a kind from the ring times the planes at `planes`: sums[slice][first + row].
 * ONE: a tile is no wider than a chunk, so a warp's columns are the same in all tiles. */
template <int KIND, int OVER, bool ONE>
MEGA_FN void multiply_tiles(const mega_arguments &a, mega_block &b, const mega_tiles &shape,
                            int tiles, uint32_t planes, uint32_t pitch, int first)
{
    const bool own_units = OVER == OVER_HEAD;
    const int at_once = ONE && !own_units ? (int)brick<KIND>::AT_ONCE : 1;
    b.reload();
    int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    int tile = warp * shape.inverse >> 8, slice = warp - tile * shape.across;
    bool works = tile < shape.beside;
    /* Which of the tiles multiplied together. */
    int mine = tile + (at_once == 2 ? t >> 1 : 0) * shape.beside;
    int row = first + mine * BRICK_ROWS + g + 8 * (t & 1);
    uint32_t sums = b.own + a.shared.sums + 4 * (slice * a.shared.sum_pitch + row);
    brick_digits digits = brick_digits_at(planes, pitch, b.lane);
    brick_vector<KIND, own_units> x;
    /* Unconditionally: a conditional value would occupy registers everywhere. */
    x.load(digits, slice);
    bool leaves = works && (at_once == 2 || t < 2);
#pragma unroll 1
    for (int i = 0; i < tiles; i += at_once * shape.beside) {
        float r[at_once][2];
#pragma unroll
        for (int n = 0; n < at_once; n++)
            r[n][0] = r[n][1] = 0;
#pragma unroll 1
        for (int k = 0; k < (ONE ? 1 : shape.chunks); k++) {
            if (!ONE) x.load(digits, k * MEGA_WARPS + slice);
            brick_set<KIND, at_once> w;
            w.take(a, b, at_once == 2 && i + shape.beside >= tiles ? 1 : at_once, warp);
            if (!works || (!ONE && k * MEGA_WARPS + slice >= shape.across)) continue;
            float s[at_once][2];
#pragma unroll
            for (int n = 0; n < at_once; n++)
                s[n][0] = s[n][1] = 0;
#pragma unroll
            for (int j = 0; j < BRICK_BLOCKS; j++)
#pragma unroll
                for (int n = 0; n < at_once; n++)
                    w.of[n].add(j, x.v + 2 * j, own_units ? x.units[own_units * j] : 1.0f,
                                x.sums[j], s[n]);
#pragma unroll
            for (int n = 0; n < at_once; n++) {
                r[n][0] = fmaf(s[n][0], x.unit, r[n][0]);
                r[n][1] = fmaf(s[n][1], x.unit * brick<KIND>::high_unit(), r[n][1]);
            }
        }
        float sum = sum_lanes<2 * at_once>(r[0], t);
        if (leaves && i + mine < tiles) store_shared(sums + 4 * BRICK_ROWS * i, sum);
    }
}

template <int KIND, int OVER>
MEGA_FN void multiply_tiles_of_kind(const mega_arguments &a, mega_block &b, int tiles,
                                    uint32_t planes, uint32_t pitch, int first)
{
    mega_tiles shape = tiles_of(a, OVER);
    if (OVER == OVER_HEAD || shape.chunks == 1)
        multiply_tiles<KIND, OVER, true>(a, b, shape, tiles, planes, pitch, first);
    else
        multiply_tiles<KIND, OVER, false>(a, b, shape, tiles, planes, pitch, first);
}

template <int OVER>
MEGA_FN void multiply_tiles_of(const mega_arguments &a, mega_block &b, int kind, int tiles,
                               uint32_t planes, uint32_t pitch, int first)
{
    if (is_kind<BRICK_Q8_0>(kind))
        multiply_tiles_of_kind<BRICK_Q8_0, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q4_0>(kind))
        multiply_tiles_of_kind<BRICK_Q4_0, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q4_1>(kind))
        multiply_tiles_of_kind<BRICK_Q4_1, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q4_K>(kind))
        multiply_tiles_of_kind<BRICK_Q4_K, OVER>(a, b, tiles, planes, pitch, first);
    else if (is_kind<BRICK_Q6_K>(kind))
        multiply_tiles_of_kind<BRICK_Q6_K, OVER>(a, b, tiles, planes, pitch, first);
}

/* Tiles of an entry that are contiguous in one matrix. */
struct tile_run {
    int matrix, first, tiles;
};

/* The run that begins at tile `tile` of `tiles`: all of them, or for QKV those of q, k or v. */
template <int DIM>
MEGA_FN tile_run tile_run_from(const mega_arguments &a, const mega_entry &e, int matrix, int tile,
                               int tiles)
{
    int begin = e.in.units.begin;
    if (e.in.opcode != MEGA_QKV) return {matrix, begin / BRICK_ROWS + tile, tiles - tile};
    qkv_pair p = qkv_pair_at<DIM>(a, begin + tile * (BRICK_ROWS / 2));
    int heads = p.kind == PAIR_QUERY ? a.group - p.member : 1;
    int left = heads * (DIM / BRICK_ROWS) - p.pair / (BRICK_ROWS / 2);
    return {p.kind, p.head * (DIM / BRICK_ROWS) + p.pair / (BRICK_ROWS / 2),
            min(left, tiles - tile)};
}

/* `tiles` tiles of 8 rows of an entry's matrix, as in product.cuh; but no chunk is taken before x
 * is there, because each kind of brick has other registers. */
template <int BLOCKS> struct row_fragments {
};
template <int BLOCKS>
MEGA_FN void take_early(const mega_arguments &, mega_block &, int, row_fragments<BLOCKS> &)
{
}
template <int DIM, int BLOCKS>
MEGA_FN void multiply_rows(const mega_arguments &a, mega_block &b, const mega_entry &e, int matrix,
                           int tiles, int first, int, row_fragments<BLOCKS> &)
{
    tiles = (tiles + 1) / 2;
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        multiply_tiles_of<OVER_HIDDEN>(a, b, e.weights.kinds[run.matrix], run.tiles,
                                       b.own + a.shared.planes, a.shared.plane,
                                       first + tile * BRICK_ROWS);
        tile += run.tiles;
    }
}

/* Parts of a row's sum. */
MEGA_FN int row_slices(const mega_arguments &a, const mega_entry &, int)
{
    return tile_slices(tiles_of(a, OVER_HIDDEN));
}

/* A KV head's columns of W_o times the outputs of its heads: sums[slice of columns][row]. */
template <int DIM>
MEGA_FN int product_heads(const mega_arguments &a, mega_block &b, const mega_entry &e, int rows)
{
    multiply_tiles_of<OVER_HEAD>(a, b, e.weights.kinds[0], (rows + BRICK_ROWS - 1) / BRICK_ROWS,
                                 b.own + a.shared.heads, a.shared.head_plane, 0);
    return tile_slices(tiles_of(a, OVER_HEAD));
}

/* ---- W_down ---------------------------------------------------------------------------------- */

/* Outputs [first, first + 2048) of the features, 32 features at a time, to out[2048]. */
template <int KIND>
MEGA_FN void add_features(const mega_arguments &a, mega_block &b, int groups, int first, float *out)
{
    const int each = BRICK_ROWS * BRICK_BLOCKS, at_once = brick<KIND>::AT_ONCE;
    b.reload();
    int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    brick_digits digits =
        brick_digits_at(b.own + a.shared.features, a.shared.feature_plane, b.lane);
    float unit_of_lane = brick<KIND>::unit() * digits.weight;
#pragma unroll 1
    for (int from = first; from < min(a.hidden, first + MEGA_COLUMNS); from += MEGA_WARPS * each) {
        float r[BRICK_BLOCKS][2];
#pragma unroll
        for (int j = 0; j < BRICK_BLOCKS; j++)
            r[j][0] = r[j][1] = 0;
#pragma unroll 1
        for (int group = 0; group < groups; group += at_once) {
            int there = min(at_once, groups - group);
            uint32_t v[at_once][2];
            float unit[at_once];
#pragma unroll
            for (int n = 0; n < at_once; n++) {
                int which = group + min(n, there - 1);
                load_shared_8(v[n], digits.at + (which >> 1) * 64 + (which & 1) * 8);
                unit[n] = unit_of_lane * __uint_as_float(load_shared(digits.units + 4 * which));
                if (n >= there) unit[n] = 0;
            }
            brick_set<KIND, at_once> w;
            w.take(a, b, there, warp);
#pragma unroll
            for (int n = 0; n < at_once; n++) {
                auto sum = brick<KIND>::sum(v[n]);
#pragma unroll
                for (int j = 0; j < BRICK_BLOCKS; j++)
                    w.of[n].add(j, v[n], unit[n], sum, r[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < BRICK_BLOCKS; j += 2) {
            r[j][1] *= brick<KIND>::high_unit();
            r[j + 1][1] *= brick<KIND>::high_unit();
            float sum = sum_lanes<4>(r[j], t);
            int o = from - first + warp * each + (j + (t >> 1)) * BRICK_ROWS + g + 8 * (t & 1);
            if (first + o < a.hidden) out[o] = sum;
        }
    }
}

/* What `rows` features add to the outputs from `first` on, as in product.cuh. */
template <int BLOCKS>
MEGA_FN void product_transposed(const mega_arguments &a, mega_block &b, const mega_entry &e,
                                int rows, int first, float *out)
{
    int groups = rows / BRICK_COLUMNS, kind = e.weights.kinds[2];
    if (is_kind<BRICK_Q8_0>(kind))
        add_features<BRICK_Q8_0>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q4_0>(kind))
        add_features<BRICK_Q4_0>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q4_1>(kind))
        add_features<BRICK_Q4_1>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q4_K>(kind))
        add_features<BRICK_Q4_K>(a, b, groups, first, out);
    else if (is_kind<BRICK_Q6_K>(kind))
        add_features<BRICK_Q6_K>(a, b, groups, first, out);
    __syncwarp();
}

#endif
