/* Quantised weights times vectors, on the tensor cores, of integers but for FP8.
 *
 * Quants are the bytes of one operand; the vector's digits (digits.cuh) are columns 0, 2, 4 and 6
 * of the other, so lane t of a group of four has digit t. A block's sums of products are exact;
 * they become float32 when they are multiplied by their scale and added to the row's sum. Six-bit
 * quants are in bits 2 to 7 of a byte, four times too large; the vector's unit makes up for it. Two
 * rows of Q4_0 share bytes: the first row's sum is the byte's sum less the second row's. Numbers of
 * FP8 and digits become F16, which is exact, and their sums are float32. Types with
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
 * + 8 of unit * high_unit(). row_scale(): the factor of the sum that a lane stores, that of row g,
 * or of odd lanes g + 8. `sum`: sum() of v. AT_ONCE: bricks that a warp multiplies together.
 * BLOCKS: of a brick. */
template <int KIND> struct brick;

/* For kinds that need no sum of the vector. */
struct brick_without_sum {
    enum { BLOCKS = BRICK_BLOCKS };
    typedef int sum_type;
    static MEGA_FN int sum(const uint32_t *) { return 0; }
    static MEGA_FN float high_unit() { return 1; }
    static MEGA_FN float row_scale() { return 1; }
};
/* For kinds with a minimum: the vector's sum times the minimum is part of the row's sum. */
struct brick_with_minimum {
    enum { BLOCKS = BRICK_BLOCKS };
    typedef float sum_type;
    static MEGA_FN float sum(const uint32_t *v) { return (float)sum_digits<1>(v); }
    static MEGA_FN float high_unit() { return 1; }
    static MEGA_FN float row_scale() { return 1; }
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
    enum { AT_ONCE = 2, BLOCKS = BRICK_BLOCKS };
    uint32_t q[8], scale[4];

    static MEGA_FN float unit() { return 1; }
    static MEGA_FN float high_unit() { return 1 / 16.0f; }
    static MEGA_FN float row_scale() { return 1; }
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

/* Four digits as F16, the first one lowest. 0x6400 is 1,024 in F16, where a step is one. */
MEGA_FN void half_digits(uint32_t digits, uint32_t *out)
{
    const uint32_t bytes = digits ^ 0x80808080;
    const __half2 zero = __float2half2_rn(1024 + 128);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t pair = __byte_perm(bytes, 0x64646464, i ? 0x4342 : 0x4140);
        *(__half2 *)&pair = __hsub2(*(__half2 *)&pair, zero);
        out[i] = pair;
    }
}
/* Four numbers of E4M3 as F16. */
MEGA_FN void half_numbers(uint32_t four, uint32_t *out)
{
    asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(four));
}

/* E4M3 numbers and digits both become F16, which is exact. A lane's four columns of a half are two
 * pairs of an instruction's 16. */
struct brick_of_numbers : brick_without_sum {
    enum { AT_ONCE = 1 };
    uint32_t q[16];

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
#pragma unroll
        for (int j = 0; j < BRICK_BLOCKS; j++)
            load_shared_words(q + 4 * j, at + 512 * j + 16 * lane);
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int, float *r) const
    {
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int f = 0; f < 2; f++) {
            uint32_t x[2], low[2], high[2];
            half_digits(v[f], x);
            half_numbers(q[4 * j + 2 * f], low);
            half_numbers(q[4 * j + 2 * f + 1], high);
            multiply_16<true>(c, low[0], high[0], low[1], high[1], x[0], x[1]);
        }
        r[0] = fmaf(unit, c[0], r[0]);
        r[1] = fmaf(unit, c[2], r[1]);
    }
};

template <> struct brick<BRICK_F8_DOWN> : brick_of_numbers {
};

template <> struct brick<BRICK_F8> : brick_of_numbers {
    float scale;

    MEGA_FN void load(uint32_t at, int lane)
    {
        brick_of_numbers::load(at, lane);
        scale =
            __uint_as_float(load_shared(at + BRICK_SCALES_F8 + 8 * (lane >> 2) + 4 * (lane & 1)));
    }
    MEGA_FN float row_scale() const { return scale; }
};

/* Two digits as BF16, from bytes `which` and `which` + 1: the difference of 128 + the lower seven
 * bits and of 128, or 256 where the eighth is set. */
template <int WHICH> MEGA_FN uint32_t bfloat_digits(uint32_t digits)
{
    const uint32_t pair = __byte_perm(digits, 0x43434343, WHICH ? 0x4342 : 0x4140);
    const uint32_t low = pair & 0xff7fff7f, zero = pair & 0xff80ff80;
    const __nv_bfloat162 two =
        __hsub2(*(const __nv_bfloat162 *)&low, *(const __nv_bfloat162 *)&zero);
    return *(const uint32_t *)&two;
}

template <> struct brick<BRICK_BF16> : brick_without_sum {
    enum { AT_ONCE = 1, BLOCKS = BRICK_BLOCKS / 2 };
    uint32_t q[16];

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++)
            load_shared_words(q + 4 * i, at + 512 * i + 16 * lane);
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int, float *r) const
    {
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int f = 0; f < 2; f++) {
            const uint32_t *w = q + 8 * j + 4 * f;
            multiply_16<false>(c, w[0], w[2], w[1], w[3], bfloat_digits<0>(v[f]),
                               bfloat_digits<1>(v[f]));
        }
        r[0] = fmaf(unit, c[0], r[0]);
        r[1] = fmaf(unit, c[2], r[1]);
    }
};

/* ---- tiles of 16 rows ------------------------------------------------------------------------ */

enum { OVER_HIDDEN, OVER_HEAD };

MEGA_FN mega_tiles tiles_of(const mega_arguments &a, int over, int kind)
{
    mega_tiles shape = a.tiles[over];
    if (!(MEGA_BRICKS >> BRICK_BF16 & 1) || kind != BRICK_BF16) return shape;
    shape.across *= 2; /* bricks are half as wide */
    shape.chunks = (shape.across + MEGA_WARPS - 1) / MEGA_WARPS;
    shape.beside = max(shape.beside / 2, 1);
    shape.inverse = (shape.inverse + 1) / 2;
    return shape;
}
MEGA_FN int tile_slices(const mega_tiles &shape)
{
    return min(shape.across, (int)MEGA_WARPS);
}

/* A brick's columns of the vector, or W_down's 32 features, as a lane has them. */
template <int KIND, bool OWN_UNITS> struct brick_vector {
    enum { BLOCKS = brick<KIND>::BLOCKS };
    uint32_t v[2 * BLOCKS];
    float unit, units[OWN_UNITS ? BLOCKS : 1];
    typename brick<KIND>::sum_type sums[BLOCKS];

    MEGA_FN void load(const brick_digits &x, int slice)
    {
#pragma unroll
        for (int j = 0; j < BLOCKS; j += 2)
            load_shared_words(v + 2 * j, x.at + BLOCKS * BRICK_COLUMNS * slice + 32 * j);
        unit = brick<KIND>::unit() * x.weight;
        if (OWN_UNITS) {
            uint32_t w[4];
            load_shared_words(w, x.units + 16 * slice);
#pragma unroll
            for (int j = 0; j < BLOCKS; j++)
                units[j] = __uint_as_float(w[j]);
        } else {
            unit *= __uint_as_float(load_shared(x.units + 4 * (slice * BLOCKS / BRICK_BLOCKS)));
        }
#pragma unroll
        for (int j = 0; j < BLOCKS; j++)
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

/* r += bricks times the vector. */
template <int KIND, bool OWN_UNITS, int N>
MEGA_FN void add_bricks(const brick_set<KIND, N> &w, const brick_vector<KIND, OWN_UNITS> &x,
                        float (*r)[2])
{
    float s[N][2];
#pragma unroll
    for (int n = 0; n < N; n++)
        s[n][0] = s[n][1] = 0;
#pragma unroll
    for (int j = 0; j < brick<KIND>::BLOCKS; j++)
#pragma unroll
        for (int n = 0; n < N; n++)
            w.of[n].add(j, x.v + 2 * j, OWN_UNITS ? x.units[OWN_UNITS * j] : 1.0f, x.sums[j], s[n]);
#pragma unroll
    for (int n = 0; n < N; n++) {
        r[n][0] = fmaf(s[n][0], x.unit, r[n][0]);
        r[n][1] = fmaf(s[n][1], x.unit * brick<KIND>::high_unit(), r[n][1]);
    }
}

/* Bricks that are loaded before the vector is there, which makes room in the ring for as many more:
 * only where matrices of rows are of one kind, and not in kernels that sample, which lack the
 * registers. */
template <int KIND, int OVER> MEGA_FN constexpr bool loads_early()
{
    return KIND == BRICK_F8 && OVER == OVER_HIDDEN && !MEGA_CHOOSES;
}
enum { EARLY_BRICKS = MEGA_BRICKS >> BRICK_F8 & 1 && !MEGA_CHOOSES };
template <bool EARLY> struct early_bricks {
};
template <> struct early_bricks<true> : brick_set<BRICK_F8, 1> {
};
template <int BLOCKS> struct row_fragments : early_bricks<EARLY_BRICKS> {
};

/* `tiles` tiles of a kind from the ring times the planes at `planes`: sums[slice][first + row].
 * ONE: a tile is no wider than a chunk, so a warp's columns are the same in all tiles. `w`: with
 * loads_early() it has the first bricks, and after the call those that follow, if any do. */
template <int KIND, int OVER, bool ONE, int N>
MEGA_FN void multiply_tiles(const mega_arguments &a, mega_block &b, const mega_tiles &shape,
                            int tiles, uint32_t planes, uint32_t pitch, int first, bool follow,
                            brick_set<KIND, N> &w)
{
    const bool own_units = OVER == OVER_HEAD, early = loads_early<KIND, OVER>();
    const int at_once = N;
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
        float scale = 1;
#pragma unroll 1
        for (int k = 0; k < (ONE ? 1 : shape.chunks); k++) {
            if (!ONE) x.load(digits, k * MEGA_WARPS + slice);
            if (!early) w.take(a, b, at_once == 2 && i + shape.beside >= tiles ? 1 : at_once, warp);
            if (works && (ONE || k * MEGA_WARPS + slice < shape.across))
                add_bricks<KIND, own_units>(w, x, r);
            scale = w.of[0].row_scale();
            if (early && (follow || i + shape.beside < tiles || (!ONE && k + 1 < shape.chunks)))
                w.take(a, b, 1, warp);
        }
        float sum = sum_lanes<2 * at_once>(r[0], t) * scale;
        if (leaves && i + mine < tiles) store_shared(sums + 4 * BRICK_ROWS * i, sum);
    }
}

template <int KIND, int OVER>
MEGA_FN void multiply_tiles_of_kind(const mega_arguments &a, mega_block &b, int tiles,
                                    uint32_t planes, uint32_t pitch, int first, bool follow,
                                    brick_set<KIND, 1> &one)
{
    mega_tiles shape = tiles_of(a, OVER, KIND);
    brick_set<KIND, brick<KIND>::AT_ONCE> several;
    if (OVER == OVER_HEAD || (shape.chunks == 1 && brick<KIND>::AT_ONCE == 1))
        multiply_tiles<KIND, OVER, true>(a, b, shape, tiles, planes, pitch, first, follow, one);
    else if (shape.chunks == 1)
        multiply_tiles<KIND, OVER, true>(a, b, shape, tiles, planes, pitch, first, follow, several);
    else
        multiply_tiles<KIND, OVER, false>(a, b, shape, tiles, planes, pitch, first, follow, one);
}

template <int KIND, int OVER>
MEGA_FN void multiply_tiles_of_kind(const mega_arguments &a, mega_block &b, int tiles,
                                    uint32_t planes, uint32_t pitch, int first)
{
    brick_set<KIND, 1> one;
    multiply_tiles_of_kind<KIND, OVER>(a, b, tiles, planes, pitch, first, false, one);
}

/* But for kinds that load early. */
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
    else if (!loads_early<BRICK_F8, OVER>() && is_kind<BRICK_F8>(kind))
        multiply_tiles_of_kind<BRICK_F8, OVER>(a, b, tiles, planes, pitch, first);
    else if (OVER == OVER_HIDDEN && is_kind<BRICK_BF16>(kind))
        multiply_tiles_of_kind<BRICK_BF16, OVER_HIDDEN>(a, b, tiles, planes, pitch, first);
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

/* The first bricks of `tiles` tiles of 8 rows of the entry's first matrix, if such bricks are
 * loaded early. */
template <int BLOCKS>
MEGA_FN void take_early(const mega_arguments &a, mega_block &b, int tiles, row_fragments<BLOCKS> &w)
{
    if constexpr (EARLY_BRICKS)
        if (tiles > 0 && b.at<mega_entry>(b.slot)->weights.kinds[0] == BRICK_F8)
            w.take(a, b, 1, __shfl_sync(~0u, b.warp, 0));
}

/* `tiles` tiles of 8 rows of an entry's matrix, as in product.cuh. */
template <int DIM, int BLOCKS>
MEGA_FN void multiply_rows(const mega_arguments &a, mega_block &b, const mega_entry &e, int matrix,
                           int tiles, int first, int next, row_fragments<BLOCKS> &w)
{
    tiles = (tiles + 1) / 2;
#pragma unroll 1
    for (int tile = 0; tile < tiles;) {
        tile_run run = tile_run_from<DIM>(a, e, matrix, tile, tiles);
        const int kind = e.weights.kinds[run.matrix], row = first + tile * BRICK_ROWS;
        const uint32_t planes = b.own + a.shared.planes;
        tile += run.tiles;
        if constexpr (EARLY_BRICKS) {
            if (kind == BRICK_F8) {
                multiply_tiles_of_kind<BRICK_F8, OVER_HIDDEN>(
                    a, b, run.tiles, planes, a.shared.plane, row, tile < tiles || next > 0, w);
                continue;
            }
        }
        multiply_tiles_of<OVER_HIDDEN>(a, b, kind, run.tiles, planes, a.shared.plane, row);
    }
}

/* Parts of a row's sum. */
MEGA_FN int row_slices(const mega_arguments &a, const mega_entry &e, int matrix)
{
    return tile_slices(tiles_of(a, OVER_HIDDEN, e.weights.kinds[matrix]));
}

/* A KV head's columns of W_o times the outputs of its heads: sums[slice of columns][row]. */
template <int DIM>
MEGA_FN int product_heads(const mega_arguments &a, mega_block &b, const mega_entry &e, int rows)
{
    multiply_tiles_of<OVER_HEAD>(a, b, e.weights.kinds[0], (rows + BRICK_ROWS - 1) / BRICK_ROWS,
                                 b.own + a.shared.heads, a.shared.head_plane, 0);
    return tile_slices(tiles_of(a, OVER_HEAD, e.weights.kinds[0]));
}

/* ---- W_down ---------------------------------------------------------------------------------- */

/* The scales of rows `row` and 32 further, which lie before the bricks at `matrix`: 1 where each
 * brick has its own. They are loaded while the bricks are on their way. */
template <int KIND> MEGA_FN float2 scales_before(const mega_arguments &a, uint64_t matrix, int row)
{
    if (KIND != BRICK_F8_DOWN) return make_float2(1, 1);
    const float *scales = (const float *)matrix - a.hidden;
    return make_float2(row < a.hidden ? load_early(scales + row) : 0,
                       row + 32 < a.hidden ? load_early(scales + row + 32) : 0);
}

/* Outputs [first, first + 2048) of the features, 32 features at a time, to out[2048]. */
template <int KIND>
MEGA_FN void add_features(const mega_arguments &a, mega_block &b, uint64_t matrix, int groups,
                          int first, float *out)
{
    const int each = BRICK_ROWS * BRICK_BLOCKS, at_once = brick<KIND>::AT_ONCE;
    b.reload();
    int g = b.lane >> 2, t = b.lane & 3, warp = __shfl_sync(~0u, b.warp, 0);
    brick_digits digits =
        brick_digits_at(b.own + a.shared.features, a.shared.feature_plane, b.lane);
    float unit_of_lane = brick<KIND>::unit() * digits.weight;
#pragma unroll 1
    for (int from = first; from < min(a.hidden, first + MEGA_COLUMNS); from += MEGA_WARPS * each) {
        const int row = from + warp * each + (t >> 1) * BRICK_ROWS + g + 8 * (t & 1);
        const float2 scales = scales_before<KIND>(a, matrix, row);
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
            float sum = sum_lanes<4>(r[j], t) * (j ? scales.y : scales.x);
            int o = row + j * BRICK_ROWS;
            if (o < a.hidden) out[o - first] = sum;
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
        add_features<BRICK_Q8_0>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<BRICK_Q4_0>(kind))
        add_features<BRICK_Q4_0>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<BRICK_Q4_1>(kind))
        add_features<BRICK_Q4_1>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<BRICK_Q4_K>(kind))
        add_features<BRICK_Q4_K>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<BRICK_Q6_K>(kind))
        add_features<BRICK_Q6_K>(a, b, e.weights.matrix[2], groups, first, out);
    else if (is_kind<BRICK_F8_DOWN>(kind))
        add_features<BRICK_F8_DOWN>(a, b, e.weights.matrix[2], groups, first, out);
    __syncwarp();
}

#endif
