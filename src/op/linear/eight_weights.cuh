/* Weights for linear_eight.cuh: steps of a tile as lanes hold them, for each type, and how a warp
 * copies them to shared memory. */
#pragma once

#include "op/device.cuh"
#include "op/linear/linear_eight.h"
#include "op/tensor_core.cuh"
#include "tensor/stored.h"

#define METHOD __device__ __forceinline__

enum {
    EIGHT_PARTS = 3,
    EIGHT_STEP_BLOCKS = LINEAR_EIGHT_COLUMNS / LINEAR_EIGHT_BLOCK,
    EIGHT_THREADS = LINEAR_EIGHT_WARPS * WARP,
    EIGHT_TILE_SUMS = LINEAR_EIGHT_ROWS * LINEAR_EIGHT_FEATURES,
};

/* Two BF16 numbers from the bits of a word's halves that MASK leaves, less `zero`. `base` is 128 in
 * both halves, so that a half is 128 more than its bits. */
template <uint32_t MASK>
DEVICE_FN uint32_t eight_numbers(uint32_t word, uint32_t base, uint32_t zero)
{
    uint32_t number;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(number) : "r"(word), "n"(MASK), "r"(base));
    asm("sub.rn.bf16x2 %0, %0, %1;" : "+r"(number) : "r"(zero));
    return number;
}
/* 128 + level in BF16, twice. */
DEVICE_FN constexpr uint32_t eight_zero(int level)
{
    return 0x10001u * (0x4300u + (uint32_t)level);
}

/* A word at a multiple of two bytes. */
DEVICE_FN uint32_t eight_word(const char *at)
{
    const uint16_t *halves = (const uint16_t *)at;
    return halves[0] | (uint32_t)halves[1] << 16;
}
DEVICE_FN float eight_half(const char *at)
{
    return __half2float(*(const __half *)at);
}
/* ---- weights -------------------------------------------------------------------------------- */

/* A step of a tile as a lane has it. Of rows g and g + 8 (0 and 1 here; g is lane / 4, t lane % 4)
 * it has columns 4 t to 4 t + 3 of each half of a block; a word holds two neighbours, or of
 * quantised weights columns i and i + 2. fragment(): half h of block j. scale(): adds block j's
 * sums of quants times x, c, to r; `sums` are those of only x. A step of a row is SPAN bytes. */
template <dtype T> struct eight_weights;

struct eight_plain {
    enum { PLAIN = 1, MINIMUM = 0, HALVES = 0, SPAN = 256, BLOCK_BYTES = 64 };
    uint2 q[2][EIGHT_STEP_BLOCKS][2];

    METHOD void load_row(int row, const char *at, int t, int)
    {
#pragma unroll
        for (int i = 0; i < 2 * EIGHT_STEP_BLOCKS; i++)
            q[row][i / 2][i % 2] = *(const uint2 *)(at + 32 * i + 8 * t);
    }
    METHOD void fragment(int j, int h, uint32_t *a) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            a[row] = q[row][j][h].x, a[2 + row] = q[row][j][h].y;
    }
    METHOD void scale(int, int, const float *, const float *, float *) const {}
};
template <> struct eight_weights<DTYPE_BF16> : eight_plain {
    enum { HALF = 0 };
};
template <> struct eight_weights<DTYPE_F16> : eight_plain {
    enum { HALF = 1 };
};

struct eight_quants {
    enum { PLAIN = 0, HALF = 0, HALVES = 0 };
    uint32_t base; /* eight_numbers()'s base, in a register */

    /* Adds c times the scale of each row to r. */
    static METHOD void add(const float *c, float low, float high, float *r)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = fmaf(i < 2 ? low : high, c[i], r[i]);
    }
    /* The low or high nibbles of a row's four columns of a half. */
    template <int SHIFT>
    METHOD void nibbles(uint32_t word, int row, uint32_t zero, uint32_t *a) const
    {
        a[row] = eight_numbers<0x000f000f>(word >> SHIFT, base, zero);
        a[2 + row] = eight_numbers<0x000f000f>(word >> (SHIFT + 8), base, zero);
    }
};

template <> struct eight_weights<DTYPE_Q8_0> : eight_quants {
    enum { MINIMUM = 0, BLOCK_BYTES = BLOCK_BYTES_Q8_0, SPAN = EIGHT_STEP_BLOCKS * BLOCK_BYTES };
    uint32_t q[2][EIGHT_STEP_BLOCKS][2];
    float d[2][EIGHT_STEP_BLOCKS];

    METHOD void load_row(int row, const char *at, int t, int)
    {
#pragma unroll
        for (int j = 0; j < EIGHT_STEP_BLOCKS; j++, at += BLOCK_BYTES) {
            d[row][j] = eight_half(at);
            q[row][j][0] = eight_word(at + 2 + 4 * t);
            q[row][j][1] = eight_word(at + 18 + 4 * t);
        }
    }
    /* The low bits of bytes; a sign bit subtracts 128. */
    METHOD uint32_t bytes(uint32_t word) const
    {
        uint32_t zero;
        asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(zero) : "r"(word), "n"(0x00800080), "r"(base));
        return eight_numbers<0x007f007f>(word, base, zero);
    }
    METHOD void fragment(int j, int h, uint32_t *a) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            a[row] = bytes(q[row][j][h]), a[2 + row] = bytes(q[row][j][h] >> 8);
    }
    METHOD void scale(int j, int, const float *c, const float *, float *r) const
    {
        add(c, d[0][j], d[1][j], r);
    }
};

/* Blocks of 32 nibbles after `HEAD` bytes of scales. */
template <int HEAD, int ZERO> struct eight_nibbles : eight_quants {
    enum { BLOCK_BYTES = HEAD + 16, SPAN = EIGHT_STEP_BLOCKS * BLOCK_BYTES };
    uint32_t q[2][EIGHT_STEP_BLOCKS];
    float d[2][EIGHT_STEP_BLOCKS], m[2][EIGHT_STEP_BLOCKS];

    METHOD void load_row(int row, const char *at, int t, int)
    {
#pragma unroll
        for (int j = 0; j < EIGHT_STEP_BLOCKS; j++, at += BLOCK_BYTES) {
            d[row][j] = eight_half(at);
            if (HEAD == 4) m[row][j] = eight_half(at + 2);
            q[row][j] = eight_word(at + HEAD + 4 * t);
        }
    }
    METHOD void fragment(int j, int h, uint32_t *a) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            if (h == 0)
                nibbles<0>(q[row][j], row, eight_zero(ZERO), a);
            else
                nibbles<4>(q[row][j], row, eight_zero(ZERO), a);
    }
};
template <> struct eight_weights<DTYPE_Q4_0> : eight_nibbles<2, 8> {
    enum { MINIMUM = 0 };
    METHOD void scale(int j, int, const float *c, const float *, float *r) const
    {
        add(c, d[0][j], d[1][j], r);
    }
};
template <> struct eight_weights<DTYPE_Q4_1> : eight_nibbles<4, 0> {
    enum { MINIMUM = 1 };
    METHOD void scale(int j, int, const float *c, const float *sums, float *r) const
    {
        const float own[4] = {sums[0], sums[1], sums[0], sums[1]};
        add(own, m[0][j], m[1][j], r);
        add(c, d[0][j], d[1][j], r);
    }
};

/* Half a block of 256: its head, then 64 bytes; 32 bytes hold two blocks of 32. */
template <> struct eight_weights<DTYPE_Q4_K> : eight_quants {
    enum { MINIMUM = 1, HEAD = 16, BLOCK_BYTES = BLOCK_BYTES_Q4_K, SPAN = HEAD + 64 };
    uint32_t q[2][EIGHT_STEP_BLOCKS / 2][2], scales[2], minima[2];
    float2 d[2];

    METHOD void load_row(int row, const char *at, int t, int step)
    {
        uint4 head = *(const uint4 *)at;
        d[row] = __half22float2(*(const __half2 *)&head.x);
        if (step % 2 == 0) {
            scales[row] = stored_first_scales(head.y);
            minima[row] = stored_first_scales(head.z);
        } else {
            scales[row] = stored_last_scales(head.y, head.w);
            minima[row] = stored_last_scales(head.z, head.w >> 4);
        }
#pragma unroll
        for (int i = 0; i < EIGHT_STEP_BLOCKS; i++)
            q[row][i / 2][i % 2] = *(const uint32_t *)(at + HEAD + 16 * i + 4 * t);
    }
    METHOD void fragment(int j, int h, uint32_t *a) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++)
            if (j % 2 == 0)
                nibbles<0>(q[row][j / 2][h], row, eight_zero(0), a);
            else
                nibbles<4>(q[row][j / 2][h], row, eight_zero(0), a);
    }
    METHOD void scale(int j, int, const float *c, const float *sums, float *r) const
    {
        const float own[4] = {sums[0], sums[1], sums[0], sums[1]};
        float min[2], factor[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            factor[row] = d[row].x * (float)(scales[row] >> 8 * j & 0xff);
            min[row] = -d[row].y * (float)(minima[row] >> 8 * j & 0xff);
        }
        add(own, min[0], min[1], r);
        add(c, factor[0], factor[1], r);
    }
};

/* All of a block of 256, for either half. */
template <> struct eight_weights<DTYPE_Q6_K> : eight_quants {
    enum { MINIMUM = 0, HALVES = 1, BLOCK_BYTES = BLOCK_BYTES_Q6_K, SPAN = BLOCK_BYTES };
    uint32_t low[2][2][2], high[2][2], scales[2][2]; /* [row][32 columns of 64][half] and so on */
    float d[2];

    METHOD void load_row(int row, const char *at, int t, int step)
    {
        int half = step % 2;
        d[row] = eight_half(at + 208);
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int n = 0; n < 2; n++)
                low[row][n][h] = eight_word(at + 64 * half + 32 * n + 16 * h + 4 * t);
            high[row][h] = eight_word(at + 128 + 32 * half + 16 * h + 4 * t);
            scales[row][h] = eight_word(at + 192 + 8 * half + 4 * h);
        }
    }
    METHOD void fragment(int j, int h, uint32_t *a) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            uint32_t word = stored_six_bits(low[row][j % 2][h] >> j / 2 * 4, high[row][h] >> 2 * j);
            a[row] = eight_numbers<0x003f003f>(word, base, eight_zero(32));
            a[2 + row] = eight_numbers<0x003f003f>(word >> 8, base, eight_zero(32));
        }
    }
    METHOD void scale(int j, int h, const float *c, const float *, float *r) const
    {
        float factor[2];
#pragma unroll
        for (int row = 0; row < 2; row++)
            factor[row] = d[row] * (float)(int8_t)(scales[row][j / 2] >> (16 * (j % 2) + 8 * h));
        add(c, factor[0], factor[1], r);
    }
};

/* FP4 numbers as F16, 2^14 times smaller: the three bits of exponent and mantissa at the end of
 * F16's exponent, so that its denormals are FP4's. */
template <> struct eight_weights<DTYPE_MXFP4> : eight_quants {
    enum { HALF = 1, MINIMUM = 0, BLOCK_BYTES = BLOCK_BYTES_MXFP4, SPAN = 4 * BLOCK_BYTES };
    uint32_t q[2][EIGHT_STEP_BLOCKS];
    float d[2][EIGHT_STEP_BLOCKS];

    /* A word from any address. */
    static METHOD uint32_t word(const char *at)
    {
        const uint32_t shift = (uint32_t)(uintptr_t)at & 3;
        const uint32_t *words = (const uint32_t *)(at - shift);
        return __funnelshift_r(words[0], words[1], 8 * shift);
    }
    METHOD void load_row(int row, const char *at, int t, int)
    {
#pragma unroll
        for (int j = 0; j < EIGHT_STEP_BLOCKS; j++, at += BLOCK_BYTES) {
            d[row][j] = stored_mxfp4_scale(*(const uint8_t *)at);
            q[row][j] = word(at + 1 + 4 * t);
        }
    }
    METHOD void fragment(int j, int h, uint32_t *a) const
    {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t low = h == 0 ? q[row][j] << 4 : q[row][j], high = low >> 8;
            a[row] = (low << 8 & 0x80008000u) | (low << 5 & 0x0e000e00u);
            a[2 + row] = (high << 8 & 0x80008000u) | (high << 5 & 0x0e000e00u);
        }
    }
    METHOD void scale(int j, int, const float *c, const float *, float *r) const
    {
        const float twice = 32768.0f; /* the format's scale is for twice the number */
        add(c, d[0][j] * twice, d[1][j] * twice, r);
    }
};

template <dtype T, int PITCH>
DEVICE_FN void eight_load(const linear_eight &a, eight_weights<T> &w, const char *row, int step)
{
    if constexpr (!eight_weights<T>::PLAIN) w.base = (uint32_t)a.number_base;
    w.load_row(0, row, threadIdx.x % 4, step);
    w.load_row(1, row + 8 * PITCH, threadIdx.x % 4, step);
}

/* Where a step begins in a row. */
template <dtype T> DEVICE_FN int eight_offset(int step)
{
    typedef eight_weights<T> weights;
    return T == DTYPE_Q4_K || T == DTYPE_Q6_K ? step / 2 * weights::BLOCK_BYTES
                                              : step * weights::SPAN;
}
/* How far after that 16 bytes of it are. */
template <dtype T> DEVICE_FN int eight_piece(int step, int piece)
{
    return 16 * piece + (T == DTYPE_Q4_K && piece > 0 ? step % 2 * 64 : 0);
}

/* Outputs of a tile. */
DEVICE_FN int eight_outputs(const linear_eight &a)
{
    return a.activates ? LINEAR_EIGHT_FEATURES / 2 : LINEAR_EIGHT_FEATURES;
}

/* Pieces of 16 bytes that a step of a row touches, and the lanes that copy them. Lanes go along the
 * rows; if they go down the rows, memory delivers 15% less. */
template <dtype T> struct eight_pieces {
    enum {
        /* Every step begins at a multiple of 16 bytes. */
        WHOLE = T == DTYPE_F16 || T == DTYPE_BF16 || T == DTYPE_Q4_K,
        N = (eight_weights<T>::SPAN + (WHOLE ? 0 : 14) + 15) / 16,
        LANES = WHOLE && N > 8 ? 16 : 8,
        ROWS = WARP / LANES,
    };
    /* Where a step of a row is in its first piece: the same for every ROWS rows. */
    static METHOD int shift(const char *row)
    {
        return WHOLE ? 0 : (int)((uint32_t)(uintptr_t)row & 15);
    }
};

template <dtype T> DEVICE_FN const char *eight_row(const linear_eight &a, int row, int step)
{
    return a.weight + (int64_t)row * a.weight_pitch + eight_offset<T>(step);
}

/* Where a warp is, as a producer, in the steps of its block's tiles, TILES at a time. */
template <dtype T, int TILES> struct eight_place {
    typedef eight_pieces<T> pieces;
    int group, step, left; /* tiles left in the group */
    const char *from;      /* the first piece that the lane copies */
    bool first, second;    /* whether the lane has that piece, and the one 128 bytes further */

    METHOD void find(const linear_eight &a, int last)
    {
        int lane = threadIdx.x % WARP, piece = lane % pieces::LANES;
        const char *row =
            eight_row<T>(a, a.begin + group * eight_outputs(a) + lane / pieces::LANES, step);
        int there = min((int)eight_weights<T>::SPAN, (int)a.row_bytes - eight_offset<T>(step));
        there += pieces::shift(row) - 16 * piece;
        from = row - pieces::shift(row) + eight_piece<T>(step, piece);
        first = there > 0;
        second = there > 128;
        left = min(TILES, last - group);
    }
    METHOD void advance(const linear_eight &a, int n_steps, int last)
    {
        from += a.tile_pitch;
        if (--left > 0) return;
        step += LINEAR_EIGHT_WARPS;
        if (step >= n_steps) {
            step = threadIdx.x / WARP;
            group += TILES;
        }
        find(a, last);
    }

    /* Copies the step; `to`: where the lane's first piece goes. */
    template <int PITCH> METHOD void fetch(const linear_eight &a, uint32_t to) const
    {
#pragma unroll
        for (int i = 0; i < LINEAR_EIGHT_FEATURES; i += pieces::ROWS) {
            const char *at = from + i / 8 * a.below + i % 8 * a.weight_pitch;
            if (first) copy_16(to + i * PITCH, at);
            if (pieces::N > pieces::LANES && second) copy_16(to + i * PITCH + 128, at + 128);
        }
    }
};
