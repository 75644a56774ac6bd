/* Quantised weights as numbers for the tensor cores, for two to eight rows of x: half of a fragment
 * (fragments.h) in a lane's registers, which is two blocks of 16 rows by 32 columns.
 *
 * Quants become whole numbers in BF16, which is exact: a nibble is the lower mantissa of a number
 * from 128 on, where a step is one, so that a mask makes two of them. They are then OFFSET too
 * large. The sums begin with minus OFFSET times the sum of the vector's columns of the block, which
 * the tensor cores compute as well. A block's sums are float32, and are multiplied by the block's
 * scale when they are added to the row's.
 *
 * A lane's four columns of a half of a block are columns 0 and 2, then 1 and 3, of an instruction,
 * because those are neighbours in the words of nibbles when they are masked.
 */
#pragma once

#include "vm/mega/fragment_kinds.cuh"

enum {
    PAIR_BLOCKS = 2,
    /* The offset that sums of x are multiplied by: most kinds'. */
    NUMBER_OFFSET = MEGA_QUANT_TYPES == 1 << FRAGMENT_Q4_0 ? 136 : 128,
};

/* d = c + a (16, 16) * b (16, 8) */
MEGA_FN void multiply_numbers_to(float *d, const float *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}

/* -NUMBER_OFFSET times the sums of two rows of x over the 32 columns of a block: what the block's
 * sums begin with. SUMS: 4: twice, as they begin; 2: once, in fewer registers. PARTS: BF16 numbers
 * of x. */
template <int SUMS> struct offset_sums {
    float of[SUMS];

    template <int PARTS> MEGA_FN void add_up(const uint32_t (*x)[MEGA_PARTS][2])
    {
        const uint32_t offset = NUMBER_OFFSET == 136 ? 0xc308c308 : 0xc300c300;
        const uint32_t a[4] = {offset, offset, offset, offset};
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--)
#pragma unroll
            for (int f = 0; f < 2; f++)
                multiply_tile<false>(c, a, x[f][p][0], x[f][p][1]);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            of[i] = c[i];
    }
};

/* 0x000f000f, which selects two nibbles, in a register: an instruction takes one constant, and that
 * is what the nibbles are exchanged with. */
MEGA_FN uint32_t nibble_mask(void)
{
    uint32_t mask;
    asm volatile("mov.b32 %0, 0x000f000f;" : "=r"(mask));
    return mask;
}
template <uint32_t WITH> MEGA_FN uint32_t two_nibbles(uint32_t w, uint32_t mask)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(v) : "r"(w), "r"(mask), "n"(WITH)); /* and, xor */
    return v;
}
/* Eight nibbles of a word: of row g in the low ones, of row g + 8 in the others, which are
 * exchanged with ZERO. */
template <uint32_t ZERO> MEGA_FN void nibble_numbers(uint32_t w, uint32_t mask, uint32_t *a)
{
    const uint32_t high = 0x43004300 | ZERO | ZERO << 16;
    a[0] = two_nibbles<0x43004300>(w, mask);
    a[1] = two_nibbles<high>(w >> 4, mask);
    a[2] = two_nibbles<0x43004300>(w >> 8, mask);
    a[3] = two_nibbles<high>(w >> 12, mask);
}

MEGA_FN uint32_t subtract_numbers(uint32_t v, uint32_t w)
{
    __nv_bfloat162 two = __hsub2(*(const __nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&w);
    return *(const uint32_t *)&two;
}

/* load(): of the lane's half h. numbers(): an instruction's first operand, of half f of block k.
 * scales(): of rows g and g + 8 for that block, or half. minima(): the same of a kind with a
 * MINIMUM. HALVES: a block's halves have scales of their own. */
template <int KIND> struct number_pair;

template <> struct number_pair<FRAGMENT_Q4_0> {
    enum { OFFSET = 136, HALVES = 0, MINIMUM = 0 };
    uint32_t q[4], scale[2];

    MEGA_FN void load(uint32_t at, int lane, int h)
    {
        load_shared_words(q, at + 512 * h + 16 * lane);
        load_shared_8(scale, at + FRAGMENT_NIBBLES + 16 * (lane >> 2) + 8 * h);
    }
    MEGA_FN void numbers(uint32_t mask, int k, int f, uint32_t *a) const
    {
        nibble_numbers<8>(q[2 * k + f], mask, a);
    }
    MEGA_FN float2 scales(int k, int) const { return two_halves(scale[k]); }
    MEGA_FN float2 minima(int) const { return make_float2(0, 0); }
};

template <> struct number_pair<FRAGMENT_Q8_0> {
    enum { OFFSET = 0, HALVES = 0, MINIMUM = 0 };
    uint32_t q[8], scale[2];

    MEGA_FN void load(uint32_t at, int lane, int h)
    {
        load_shared_words(q, at + 1024 * h + 16 * lane);
        load_shared_words(q + 4, at + 1024 * h + 512 + 16 * lane);
        load_shared_8(scale, at + 2 * FRAGMENT_NIBBLES + 16 * (lane >> 2) + 8 * h);
    }
    /* Bytes `which` and `which` + 2, as bfloat_digits() makes them of neighbours. */
    template <int WHICH> static MEGA_FN uint32_t two(uint32_t w)
    {
        const uint32_t pair = __byte_perm(w, 0x43434343, WHICH ? 0x4341 : 0x4240);
        return subtract_numbers(pair & 0xff7fff7f, pair & 0xff80ff80);
    }
    MEGA_FN void numbers(uint32_t, int k, int f, uint32_t *a) const
    {
        const uint32_t *w = q + 4 * k + 2 * f;
        a[0] = two<0>(w[0]), a[1] = two<0>(w[1]);
        a[2] = two<1>(w[0]), a[3] = two<1>(w[1]);
    }
    MEGA_FN float2 scales(int k, int) const { return two_halves(scale[k]); }
    MEGA_FN float2 minima(int) const { return make_float2(0, 0); }
};

template <> struct number_pair<FRAGMENT_Q4_1> {
    enum { OFFSET = 128, HALVES = 0, MINIMUM = 1 };
    uint32_t q[4], d[4]; /* d and m of [block][row] */

    MEGA_FN void load(uint32_t at, int lane, int h)
    {
        load_shared_words(q, at + 512 * h + 16 * lane);
        load_shared_words(d, at + FRAGMENT_NIBBLES + 128 * h + 16 * (lane >> 2));
    }
    MEGA_FN void numbers(uint32_t mask, int k, int f, uint32_t *a) const
    {
        nibble_numbers<0>(q[2 * k + f], mask, a);
    }
    MEGA_FN float2 scales(int k, int) const
    {
        return make_float2(two_halves(d[2 * k]).x, two_halves(d[2 * k + 1]).x);
    }
    MEGA_FN float2 minima(int k) const
    {
        return make_float2(two_halves(d[2 * k]).y, two_halves(d[2 * k + 1]).y);
    }
};

template <> struct number_pair<FRAGMENT_Q4_K> {
    enum { OFFSET = 128, HALVES = 0, MINIMUM = 1 };
    uint32_t q[4], d[4], packed[2]; /* d and dmin of [block][row]; scale and minimum the same */

    MEGA_FN void load(uint32_t at, int lane, int h)
    {
        uint32_t scales = at + FRAGMENT_NIBBLES + 16 * (lane >> 2);
        load_shared_words(q, at + 512 * h + 16 * lane);
        load_shared_words(d, scales + 128 * h);
        load_shared_8(packed, scales + 256 + 8 * h);
    }
    MEGA_FN void numbers(uint32_t mask, int k, int f, uint32_t *a) const
    {
        nibble_numbers<0>(q[2 * k + f], mask, a);
    }
    MEGA_FN float2 scales(int k, int) const
    {
        return make_float2(two_halves(d[2 * k]).x * byte_float<0>(packed[k]),
                           two_halves(d[2 * k + 1]).x * byte_float<2>(packed[k]));
    }
    MEGA_FN float2 minima(int k) const
    {
        return make_float2(two_halves(d[2 * k]).y * -byte_float<1>(packed[k]),
                           two_halves(d[2 * k + 1]).y * -byte_float<3>(packed[k]));
    }
};

template <> struct number_pair<FRAGMENT_Q6_K> {
    enum { OFFSET = 0, HALVES = 1, MINIMUM = 0 };
    uint32_t q[4], high[2], scale[4]; /* scale: [block][row] */

    MEGA_FN void load(uint32_t at, int lane, int h)
    {
        load_shared_words(q, at + 512 * h + 16 * lane);
        load_shared_8(high, at + FRAGMENT_HIGH + 16 * lane + 8 * h);
#pragma unroll
        for (int k = 0; k < PAIR_BLOCKS; k++)
            load_shared_8(scale + 2 * k,
                          at + FRAGMENT_SCALES_Q6_K + 64 * (2 * h + k) + 8 * (lane >> 2));
    }
    /* Six bits in two's complement, columns `low` of 128 + 32 + the number, less 160. */
    static MEGA_FN uint32_t two(uint32_t low, uint32_t top)
    {
        return subtract_numbers(((low & 0x000f000f) | (top & 0x00300030)) ^ 0x43204320, 0x43204320);
    }
    MEGA_FN void numbers(uint32_t, int k, int f, uint32_t *a) const
    {
        const uint32_t low = q[2 * k + f], top = high[k] >> 4 * f;
        a[0] = two(low, top << 4), a[1] = two(low >> 4, top << 2);
        a[2] = two(low >> 8, top >> 4), a[3] = two(low >> 12, top >> 6);
    }
    template <int F> static MEGA_FN float scale_of(uint32_t w)
    {
        return two_halves(w).x * (byte_float<2 + F>(w ^ 0x80800000) - 128.0f);
    }
    MEGA_FN float2 scales(int k, int f) const
    {
        return f ? make_float2(scale_of<1>(scale[2 * k]), scale_of<1>(scale[2 * k + 1]))
                 : make_float2(scale_of<0>(scale[2 * k]), scale_of<0>(scale[2 * k + 1]));
    }
    MEGA_FN float2 minima(int) const
    {
        return make_float2(0, 0);
    }
};

/* r += scales times c: rows g and g + 8 of the weights by two rows of x. */
MEGA_FN void add_scaled(float *r, const float *c, float2 scales)
{
    r[0] = fmaf(scales.x, c[0], r[0]);
    r[1] = fmaf(scales.x, c[1], r[1]);
    r[2] = fmaf(scales.y, c[2], r[2]);
    r[3] = fmaf(scales.y, c[3], r[3]);
}

/* r += block k times x. `x`: the registers of the block's two halves; `sums`: of these. */
template <int KIND, int PARTS, int SUMS>
MEGA_FN void add_block(const number_pair<KIND> &w, uint32_t mask, int k,
                       const uint32_t (*x)[MEGA_PARTS][2], const offset_sums<SUMS> &sums, float *r)
{
    typedef number_pair<KIND> pair;
    float c[2][4], first[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        first[i] = pair::OFFSET ? sums.of[i % SUMS] * ((float)pair::OFFSET / NUMBER_OFFSET) : 0;
#pragma unroll
    for (int f = 0; f < 2; f++) {
        uint32_t a[4];
        w.numbers(mask, k, f, a);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (p == 0 && (f == 0 || pair::HALVES))
                multiply_numbers_to(c[f], first, a, x[f][p]);
            else
                multiply_tile<false>(c[pair::HALVES ? f : 0], a, x[f][p][0], x[f][p][1]);
    }
    add_scaled(r, c[0], w.scales(k, 0));
    if (pair::HALVES) add_scaled(r, c[1], w.scales(k, 1));
    if (!pair::MINIMUM) return;
    const float2 m = w.minima(k);
    const float unit = -1.0f / NUMBER_OFFSET;
    const float both[4] = {sums.of[0], sums.of[1], sums.of[0], sums.of[1]};
    add_scaled(r, both, make_float2(m.x * unit, m.y * unit));
}
