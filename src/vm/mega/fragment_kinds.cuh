/* A lane's part of a fragment in registers, and its products with the vector: one struct for each
 * kind of weights. The tensor cores multiply integers, but for FP8.
 *
 * Quants are the bytes of one operand; the vector's digits (digits.cuh) are columns 0, 2, 4 and 6
 * of the other, so lane t of a group of four has digit t. A block's sums of products are exact;
 * they become float32 when they are multiplied by their scale and added to the row's sum, or, of
 * K-quants' rows of the hidden size, when a fragment's blocks are added up. Six-bit
 * quants are in bits 2 to 7 of a byte, four times too large; the vector's unit makes up for it. Two
 * rows of Q4_0 share bytes: the first row's sum is the byte's sum less the second row's. Numbers of
 * FP8 and digits become F16, which is exact, and their sums are float32. Types with
 * a minimum, and Q4_0 for its zero, need the vector's own sums; the tensor cores compute them once
 * for all rows.
 */
#pragma once

#include "vm/mega/block.cuh"
#include "vm/mega/fragments.h"

/* Whether a matrix is of a kind: a constant in kernels that read one kind only. */
template <int KIND> MEGA_FN bool is_kind(int kind)
{
    return MEGA_QUANT_TYPES == 1 << KIND || ((MEGA_QUANT_TYPES >> KIND & 1) && kind == KIND);
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
/* A byte of a word, with zeros or its sign above it. */
template <int BYTE> MEGA_FN int byte_of(uint32_t w)
{
    return (int)__byte_perm(w, 0, 0x4440 + BYTE);
}
template <int BYTE> MEGA_FN int signed_byte_of(uint32_t w)
{
    int v;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(w), "n"(0x8880 + 0x1111 * BYTE));
    return v;
}
/* A byte of a word, as a float. */
template <int BYTE> MEGA_FN float byte_float(uint32_t w)
{
    return __uint_as_float(__byte_perm(w, 0x4b000000, 0x7440 + BYTE)) - 8388608.0f;
}

/* ---- the vector ------------------------------------------------------------------------------ */

/* Planes of digits, from this lane's place in its digit's plane. */
struct fragment_digits {
    uint32_t at, units;
    float weight; /* of the lane's digit */
};
MEGA_FN fragment_digits fragment_digits_at(uint32_t planes, uint32_t pitch, int lane)
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

/* ---- fragments: a lane's part in registers ------------------------------------------------------
 */

/* A block's four registers of quants: of rows g, of rows g + 8, then the same of its second half.
 * joined_nibbles(): row g's bytes have row g + 8's nibbles 16 times over, row g + 8's bytes have
 * only those; row g's sum is the difference. plain_nibbles(): one row each. */
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
/* The same, but row g + 8's 16 times over: one instruction less a word. */
MEGA_FN void apart_nibbles(const uint32_t *w, uint32_t *a)
{
#pragma unroll
    for (int f = 0; f < 2; f++) {
        a[2 * f] = w[f] & 0x0f0f0f0f;
        a[2 * f + 1] = w[f] & 0xf0f0f0f0;
    }
}
MEGA_FN void load_nibbles(uint32_t *q, uint32_t at, int lane)
{
    load_shared_words(q, at + 16 * lane);
    load_shared_words(q + 4, at + 512 + 16 * lane);
}

/* add(): r (rows g and g + 8) += block j times the vector's `v`, in multiples of `unit`, for row g
 * + 8 of unit * high_unit(). add_blocks(), where scales are whole numbers of a number that a row's
 * blocks share: r = the sum of all blocks with a unit of 1, exact up to there; after
 * load_for_blocks(). row_scale(): the factor of the sum that a lane stores, that of row g,
 * or of odd lanes g + 8. `sum`: sum() of v. AT_ONCE: fragments that a warp multiplies together.
 * BLOCKS: of a fragment. */
template <int KIND> struct fragment;

/* For kinds that need no sum of the vector. */
struct fragment_without_sum {
    enum { BLOCKS = FRAGMENT_BLOCKS };
    typedef int sum_type;
    static MEGA_FN int sum(const uint32_t *) { return 0; }
    static MEGA_FN float high_unit() { return 1; }
    static MEGA_FN float row_scale() { return 1; }
};
/* For kinds with a minimum: the vector's sum times the minimum is part of the row's sum. */
struct fragment_with_minimum {
    enum { BLOCKS = FRAGMENT_BLOCKS };
    typedef float sum_type;
    static MEGA_FN float sum(const uint32_t *v) { return (float)sum_digits<1>(v); }
    static MEGA_FN float high_unit() { return 1; }
    static MEGA_FN float row_scale() { return 1; }
};

template <> struct fragment<FRAGMENT_Q8_0> : fragment_without_sum {
    enum { AT_ONCE = 1 };
    uint32_t q[16], scale[4];

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS; j++)
            load_shared_words(q + 4 * j, at + 512 * j + 16 * lane);
        load_shared_words(scale, at + 2 * FRAGMENT_NIBBLES + 16 * (lane >> 2));
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

template <> struct fragment<FRAGMENT_Q4_0> {
    typedef int sum_type;
    enum { AT_ONCE = 2, BLOCKS = FRAGMENT_BLOCKS };
    uint32_t q[8], scale[4];

    static MEGA_FN float unit() { return 1; }
    static MEGA_FN float high_unit() { return 1 / 16.0f; }
    static MEGA_FN float row_scale() { return 1; }
    static MEGA_FN int sum(const uint32_t *v) { return sum_digits<-8>(v); }
    MEGA_FN void load(uint32_t at, int lane)
    {
        load_nibbles(q, at, lane);
        load_shared_words(scale, at + FRAGMENT_NIBBLES + 16 * (lane >> 2));
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

template <> struct fragment<FRAGMENT_Q4_1> : fragment_with_minimum {
    enum { AT_ONCE = 1 };
    uint32_t q[8], d[8]; /* d and m of [block][row] */

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
        uint32_t scales = at + FRAGMENT_NIBBLES + 16 * (lane >> 2);
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

template <> struct fragment<FRAGMENT_Q4_K> : fragment_with_minimum {
    enum { AT_ONCE = 1 };
    typedef int sum_type;
    uint32_t q[8], d[8], packed[4]; /* d and dmin of [block][row]; scale and minimum the same */

    static MEGA_FN int sum(const uint32_t *v) { return sum_digits<1>(v); }

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
        uint32_t scales = at + FRAGMENT_NIBBLES + 16 * (lane >> 2);
        load_nibbles(q, at, lane);
        load_shared_words(d, scales);
        load_shared_words(d + 4, scales + 128);
        load_shared_words(packed, scales + 256);
    }
    MEGA_FN void load_for_blocks(uint32_t at, int lane)
    {
        uint32_t scales = at + FRAGMENT_NIBBLES + 16 * (lane >> 2);
        load_nibbles(q, at, lane);
        load_shared_8(d, scales);
        load_shared_words(packed, scales + 256);
    }
    /* A row's `c` is so many times its sum of products. */
    static MEGA_FN constexpr float part_of(int row) { return row ? 1 / 16.0f : 1; }
    template <int H> MEGA_FN void add_row(int j, int c, float unit, float sum, float *r) const
    {
        float2 s = two_halves(d[2 * j + H]);
        float scale = s.x * byte_float<2 * H>(packed[j]);
        float min = s.y * byte_float<2 * H + 1>(packed[j]);
        r[H] = fmaf(min * -unit, sum, fmaf(scale * (unit * part_of(H)), (float)c, r[H]));
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int sum, float *r) const
    {
        uint32_t a[4];
        int c[4];
        apart_nibbles(q + 2 * j, a);
        multiply_bytes<false>(c, a, v);
        add_row<0>(j, c[0], unit, (float)sum, r);
        add_row<1>(j, c[2], unit, (float)sum, r);
    }
    /* Numbers are below 2^24, or 2^28 where they are multiples of 16. */
    MEGA_FN void add_blocks(const uint32_t *v, const int *sums, float *r) const
    {
        int product[2] = {0, 0}, least[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            uint32_t a[4];
            int c[4];
            apart_nibbles(q + 2 * j, a);
            multiply_bytes<false>(c, a, v + 2 * j);
            product[0] += c[0] * byte_of<0>(packed[j]);
            product[1] += c[2] * byte_of<2>(packed[j]);
            least[0] += sums[j] * byte_of<1>(packed[j]);
            least[1] += sums[j] * byte_of<3>(packed[j]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 s = two_halves(d[h]);
            r[h] = fmaf(s.y, -(float)least[h], s.x * part_of(h) * (float)product[h]);
        }
    }
};

template <> struct fragment<FRAGMENT_Q6_K> : fragment_without_sum {
    enum { AT_ONCE = 1 };
    uint32_t q[8], high[4], scale[8]; /* scale: [block][row] */

    static MEGA_FN float unit() { return 1 / 4.0f; }
    MEGA_FN void load(uint32_t at, int lane)
    {
        load_nibbles(q, at, lane);
        load_shared_words(high, at + FRAGMENT_HIGH + 16 * lane);
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS; j++)
            load_shared_8(scale + 2 * j, at + FRAGMENT_SCALES_Q6_K + 64 * j + 8 * (lane >> 2));
    }
    template <int F> MEGA_FN void multiply_half_of(int j, uint32_t v, int *c) const
    {
        uint32_t low = q[2 * j + F], top = high[j];
        const uint32_t a[2] = {(low << 2 & 0x3c3c3c3c) | ((F ? top << 2 : top << 6) & 0xc0c0c0c0),
                               (low >> 2 & 0x3c3c3c3c) | ((F ? top : top << 4) & 0xc0c0c0c0)};
        multiply_half(c, a, v);
    }
    template <int F> MEGA_FN void multiply_half_block(int j, uint32_t v, int *product) const
    {
        int c[4];
        multiply_half_of<F>(j, v, c);
        product[0] += c[0] * signed_byte_of<2 + F>(scale[2 * j]);
        product[1] += c[2] * signed_byte_of<2 + F>(scale[2 * j + 1]);
    }
    MEGA_FN void add(int j, const uint32_t *v, float unit, int, float *r) const
    {
        int product[2] = {0, 0};
        multiply_half_block<0>(j, v[0], product);
        multiply_half_block<1>(j, v[1], product);
#pragma unroll
        for (int h = 0; h < 2; h++)
            r[h] = fmaf(two_halves(scale[2 * j + h]).x * unit, (float)product[h], r[h]);
    }
    MEGA_FN void load_for_blocks(uint32_t at, int lane)
    {
        load(at, lane);
    }
    /* Numbers are below 2^28: 128 times 16 products of 128 and 128, eight times. */
    MEGA_FN void add_blocks(const uint32_t *v, const int *, float *r) const
    {
        int product[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            multiply_half_block<0>(j, v[2 * j], product);
            multiply_half_block<1>(j, v[2 * j + 1], product);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            r[h] = two_halves(scale[h]).x * (float)product[h];
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
/* E4M3 numbers and digits both become F16, which is exact. A lane's four columns of a half are two
 * pairs of an instruction's 16. */
struct fragment_of_numbers : fragment_without_sum {
    enum { AT_ONCE = 1 };
    uint32_t q[16];

    static MEGA_FN float unit() { return 1; }
    MEGA_FN void load(uint32_t at, int lane)
    {
#pragma unroll
        for (int j = 0; j < FRAGMENT_BLOCKS; j++)
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

template <> struct fragment<FRAGMENT_F8_DOWN> : fragment_of_numbers {
};

template <> struct fragment<FRAGMENT_F8> : fragment_of_numbers {
    float scale;

    MEGA_FN void load(uint32_t at, int lane)
    {
        fragment_of_numbers::load(at, lane);
        scale = __uint_as_float(
            load_shared(at + FRAGMENT_SCALES_F8 + 8 * (lane >> 2) + 4 * (lane & 1)));
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

template <> struct fragment<FRAGMENT_BF16> : fragment_without_sum {
    enum { AT_ONCE = 1, BLOCKS = FRAGMENT_BLOCKS / 2 };
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
