/* Products of quantised weights in a chain: levels come through the ring of weights in the order of
 * linear_packed.h, and each warp turns its own into BF16 numbers in registers, from which wgmma
 * multiplies them. A number is rounded once, as in a matrix that was decoded before. Numbers of FP8
 * are turned into F16, which is exact; their rows' scales are applied to the sums.
 */
#pragma once

#include "op/attention/wgmma.cuh"
#include "op/linear/chain_block.cuh"

/* d (64, COLUMNS) += a (64, 16) b (COLUMNS, 16)^T, a in registers. */
#define WGMMA_ROWS(NAME, TYPES, COLUMNS, TILES, A0, A1, A2, A3, B, ADD)                            \
    DEVICE_FN void NAME(float(&d)[TILES][4], const uint32_t(&a)[4], uint64_t b, int add)           \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\n"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPES " "             \
                     "" WGMMA_NAMES##TILES ", {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B           \
                                           ", p, 1, 1, 0;\n}"                                      \
                     : WGMMA_D##TILES                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)                \
                     : "memory");                                                                  \
    }
WGMMA_ROWS(wgmma_rows, "bf16.bf16", 16, 2, "8", "9", "10", "11", "12", "13")
WGMMA_ROWS(wgmma_rows, "bf16.bf16", 32, 4, "16", "17", "18", "19", "20", "21")
WGMMA_ROWS(wgmma_rows, "bf16.bf16", 64, 8, "32", "33", "34", "35", "36", "37")
WGMMA_ROWS(wgmma_rows_f16, "f16.f16", 16, 2, "8", "9", "10", "11", "12", "13")
WGMMA_ROWS(wgmma_rows_f16, "f16.f16", 32, 4, "16", "17", "18", "19", "20", "21")
WGMMA_ROWS(wgmma_rows_f16, "f16.f16", 64, 8, "32", "33", "34", "35", "36", "37")
#undef WGMMA_ROWS

/* ---- where a tile's weights are -------------------------------------------------------------- */

/* The rows of a tile: groups of 64 by 64 from `from` on, those of the same rows next to each other.
 */
struct packed_tile {
    const char *from;    /* the groups of its first rows */
    const float *scales; /* of FP8: of its rows */
    int kind, unit;      /* bytes of a unit */
    int n_groups;        /* of the tile, one below the other */
};

DEVICE_FN packed_tile packed_tile_of(const chain_product &p, int tile)
{
    const chain_packed &w = p.packed;
    const int each = p.low ? 1 : 2, group = tile * each;
    const int part = (group >= w.first[1]) + (group >= w.first[2]);
    packed_tile t;
    t.kind = w.kind[part];
    t.unit = packed_unit_bytes(t.kind);
    t.from = (const char *)w.from[part] +
             (int64_t)(group - w.first[part]) * p.n_depths * (PACKED_GROUP_UNITS * t.unit);
    t.scales = (const float *)w.scales[part] + (group - w.first[part]) * PACKED_GROUP_ROWS;
    t.n_groups = min(each, w.n_groups - group);
    return t;
}

DEVICE_FN void packed_copy(uint32_t to, const void *from, int bytes, uint32_t full, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(full), "l"(policy)
                 : "memory");
}

/* One thread: copies an item's stages. In a stage, each group of rows has `count` steps. */
DEVICE_FN void packed_fetch(const chain_product &p, int tile, int first, int n, chain_ring &ring,
                            uint64_t policy)
{
    const packed_tile t = packed_tile_of(p, tile);
    const int depths = packed_depths(t.kind), step = PACKED_GROUP_UNITS * t.unit;
    for (int i = 0; i < n; i += depths) {
        const int count = min(depths, n - i);
        uint32_t full = chain_ring_take(ring, t.n_groups * count * step);
        for (int g = 0; g < t.n_groups; g++)
            packed_copy(chain_stage(ring) + g * count * step,
                        t.from + ((int64_t)g * p.n_depths + first + i) * step, count * step, full,
                        policy);
        chain_ring_next(ring);
    }
}

DEVICE_FN int packed_stages(const chain_product &p, int tile, int n)
{
    const int depths = packed_depths(packed_tile_of(p, tile).kind);
    return (n + depths - 1) / depths;
}

/* ---- a lane's part of a unit ------------------------------------------------------------------
 */

/* Byte B of a word, below 128, as a float: 128 + byte. */
template <int B> DEVICE_FN float level_float(uint32_t word)
{
    return __uint_as_float(__byte_perm(word, 0x43000000, 0x7044 | B << 8));
}

/* Four levels of a row of 16 columns to two registers: (128 + level) * scale + rest. */
DEVICE_FN void level_pairs(uint32_t word, float scale, float rest, uint32_t &near, uint32_t &far)
{
    __nv_bfloat162 low = __floats2bfloat162_rn(fmaf(level_float<0>(word), scale, rest),
                                               fmaf(level_float<1>(word), scale, rest));
    __nv_bfloat162 high = __floats2bfloat162_rn(fmaf(level_float<2>(word), scale, rest),
                                                fmaf(level_float<3>(word), scale, rest));
    near = *(uint32_t *)&low;
    far = *(uint32_t *)&high;
}

/* The same of 4 bits around 8, which are exact in BF16: nibbles 2 F + H of both halves of a word
 * for F 0 and 1. `scale`: two BF16 numbers whose sum it is, the larger one in the lower half. The
 * smaller one's products are exact, so the sum of both is rounded once. */
template <int H>
DEVICE_FN void level_products(uint32_t word, uint32_t scale, uint32_t &near, uint32_t &far)
{
    const uint32_t high = __byte_perm(scale, 0, 0x1010), low = __byte_perm(scale, 0, 0x3232);
    const __nv_bfloat162 zero = __float2bfloat162_rn(-136.0f);
#pragma unroll
    for (int f = 0; f < 2; f++) {
        const uint32_t bits = (word >> (4 * H + 8 * f) & 0x000f000f) | 0x43004300;
        const __nv_bfloat162 m = __hadd2(*(const __nv_bfloat162 *)&bits, zero);
        const __nv_bfloat162 v =
            __hfma2(m, *(const __nv_bfloat162 *)&high, __hmul2(m, *(const __nv_bfloat162 *)&low));
        (f ? far : near) = *(const uint32_t *)&v;
    }
}

DEVICE_FN void packed_words(uint32_t at, uint32_t *to)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/* Columns 16 k to 16 k + 15 of a unit are registers a[k] of wgmma. */
template <int KIND> struct packed_lane {
    enum {
        WIDE = KIND == PACKED_Q6,   /* levels of 8 bits */
        MORE = KIND != PACKED_Q4_0, /* minima, or twice as many scales */
    };
    uint32_t level[WIDE ? 8 : 4], scale[4], more[MORE ? 4 : 1];

    DEVICE_METHOD void load(uint32_t unit)
    {
        const int lane = threadIdx.x % WARP;
        const uint32_t scales = unit + (WIDE ? 1024 : 512) + lane / 4 * 16;
#pragma unroll
        for (int i = 0; i < (WIDE ? 2 : 1); i++)
            packed_words(unit + i * 512 + lane * 16, level + 4 * i);
        packed_words(scales, scale);
        if (MORE) packed_words(scales + PACKED_SCALES, more);
    }

    /* Of row g (H 0) or g + 8 (H 1). */
    template <int K, int H> DEVICE_METHOD void decode_row(uint32_t (&a)[4]) const
    {
        const int at = (KIND == PACKED_Q6 ? K % 2 : K / 2) * 2 + H;
        const uint32_t own = KIND == PACKED_Q6 && K >= 2 ? more[at * MORE] : scale[at];
        if (KIND == PACKED_Q4_0) return level_products<H>(level[K % 4], own, a[H], a[2 + H]);
        const float s = __uint_as_float(own);
        float rest = -160.0f * s; /* Q6_K's zero is at 32 */
        if (KIND == PACKED_Q4) rest = fmaf(-128.0f, s, __uint_as_float(more[at * MORE]));
        uint32_t word = WIDE ? level[(2 * K + H) % (WIDE ? 8 : 4)] : level[K % 4] >> 4 * H;
        if (!WIDE) word &= 0x0f0f0f0f;
        level_pairs(word, s, rest, a[H], a[2 + H]);
    }
    DEVICE_METHOD void decode(uint32_t (&a)[4][4]) const
    {
        decode_row<0, 0>(a[0]), decode_row<0, 1>(a[0]);
        decode_row<1, 0>(a[1]), decode_row<1, 1>(a[1]);
        decode_row<2, 0>(a[2]), decode_row<2, 1>(a[2]);
        decode_row<3, 0>(a[3]), decode_row<3, 1>(a[3]);
    }
};

/* Numbers of FP8, for x in F16, or for x in BF16. */
enum { PACKED_F8_FOR_BF16 = PACKED_F8 + 1 };

/* Four of a row of 16 columns to two registers. */
template <> struct packed_lane<PACKED_F8> {
    uint32_t numbers[8];

    DEVICE_METHOD void load(uint32_t unit)
    {
        const int lane = threadIdx.x % WARP;
        packed_words(unit + lane * 16, numbers);
        packed_words(unit + 512 + lane * 16, numbers + 4);
    }
    DEVICE_METHOD void decode(uint32_t (&a)[4][4]) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++) /* columns 16 (i / 2) of row g, or g + 8 */
            asm("{\n.reg .b16 near, far;\nmov.b32 {near, far}, %2;\n"
                "cvt.rn.f16x2.e4m3x2 %0, near;\ncvt.rn.f16x2.e4m3x2 %1, far;\n}"
                : "=r"(a[i / 2][i % 2]), "=r"(a[i / 2][2 + i % 2])
                : "r"(numbers[i]));
    }
};

template <> struct packed_lane<PACKED_F8_FOR_BF16> : packed_lane<PACKED_F8> {
    DEVICE_METHOD void decode(uint32_t (&a)[4][4]) const
    {
        packed_lane<PACKED_F8>::decode(a);
#pragma unroll
        for (int i = 0; i < 16; i++) { /* exact */
            const float2 pair = __half22float2(*(const __half2 *)&a[i / 4][i % 4]);
            a[i / 4][i % 4] = device_pack2(DTYPE_BF16, pair.x, pair.y);
        }
    }
};

/* ---- multiplying ----------------------------------------------------------------------------- */

/* What a warp takes from a product's stages. */
struct packed_warp {
    int unit, first;        /* bytes of a unit, and from a stage to its unit of the first step */
    int later;              /* from that to the second step's, where a stage has both */
    int readers, x_readers; /* arrivals that release a stage */
};

/* COUNT steps: a stage of x. */
template <int COLUMNS, int KIND, int COUNT>
DEVICE_FN void packed_steps(const packed_warp &own, bool adds, chain_ring &weights, chain_ring &xs,
                            stream_sums<COLUMNS> &sums)
{
    const bool pairs = packed_depths(KIND) == 2;
    uint32_t a[COUNT][4][4];
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        packed_lane<KIND> lane;
        if (!pairs || j == 0) chain_ring_wait(weights);
        lane.load(chain_stage(weights) + own.first + (pairs && j ? own.later : 0));
        if (!pairs || j == COUNT - 1) {
            __syncwarp(); /* all lanes have read */
            if (threadIdx.x % WARP == 0) chain_ring_give(weights, own.readers);
            chain_ring_next(weights);
        }
        lane.decode(a[j]);
    }
    chain_ring_wait(xs);
#pragma unroll
    for (int k = 0; k < 16 * COUNT; k++) /* complete before the products begin */
        asm volatile("" : "+r"(a[k / 16][k / 4 % 4][k % 4])::"memory");
    const uint64_t x = wgmma_operand(chain_stage(xs), 64);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4 * COUNT; k++) {
        const uint64_t own =
            wgmma_further(x, k / 4 * (CHAIN_X_BYTES(COLUMNS) / CHAIN_X_DEPTHS) + k % 4 * 32);
        if (KIND == PACKED_F8)
            wgmma_rows_f16(sums.of, a[k / 4][k % 4], own, adds || k > 0);
        else
            wgmma_rows(sums.of, a[k / 4][k % 4], own, adds || k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    if (threadIdx.x % 128 == 0) chain_ring_give(xs, own.x_readers);
    chain_ring_next(xs);
}

/* The n steps of an item, as many at a time as a stage of x has. While the tensor cores multiply
 * for one warpgroup, the other decodes. Only the first warpgroup has low tiles. */
template <int COLUMNS, int KIND>
DEVICE_FN void packed_multiply_kind(int n, bool low, int unit, chain_ring &weights, chain_ring &xs,
                                    stream_sums<COLUMNS> &sums)
{
    const int group = threadIdx.x / 128, warp = threadIdx.x / WARP % 4;
    const int step = PACKED_GROUP_UNITS * unit, depths = packed_depths(KIND);
    packed_warp own = {unit, group * depths * step + warp * unit, step,
                       CHAIN_READERS / (low ? 4 : 8), CHAIN_READERS / (low ? 1 : 2)};
    int i = 0;
#pragma unroll 1
    for (; i + CHAIN_X_DEPTHS <= n; i += CHAIN_X_DEPTHS)
        packed_steps<COLUMNS, KIND, CHAIN_X_DEPTHS>(own, i > 0, weights, xs, sums);
    own.first = group * step + warp * unit;
    if (i < n) packed_steps<COLUMNS, KIND, 1>(own, i > 0, weights, xs, sums);
    wgmma_hold(sums.of);
}

template <int COLUMNS>
DEVICE_FN void packed_multiply(const chain_product &p, int tile, int n, chain_ring &weights,
                               chain_ring &xs, stream_sums<COLUMNS> &sums)
{
    const packed_tile t = packed_tile_of(p, tile);
    if (p.low && threadIdx.x >= 128) {
        chain_ring_skip(weights, packed_stages(p, tile, n));
        chain_ring_skip(xs, (n + CHAIN_X_DEPTHS - 1) / CHAIN_X_DEPTHS);
        return;
    }
    if (CHAIN_F8) {
        const int row = threadIdx.x / WARP * PACKED_ROWS + threadIdx.x % WARP / 4;
        const float near = __ldg(t.scales + row), far = __ldg(t.scales + row + 8);
        if (p.bf16_x)
            packed_multiply_kind<COLUMNS, PACKED_F8_FOR_BF16>(n, p.low, t.unit, weights, xs, sums);
        else
            packed_multiply_kind<COLUMNS, PACKED_F8>(n, p.low, t.unit, weights, xs, sums);
#pragma unroll
        for (int q = 0; q < COLUMNS / 8; q++) {
            sums.of[q][0] *= near, sums.of[q][1] *= near;
            sums.of[q][2] *= far, sums.of[q][3] *= far;
        }
        return;
    }
    if (t.kind == PACKED_Q4_0)
        packed_multiply_kind<COLUMNS, PACKED_Q4_0>(n, p.low, t.unit, weights, xs, sums);
    else if (t.kind == PACKED_Q4)
        packed_multiply_kind<COLUMNS, PACKED_Q4>(n, p.low, t.unit, weights, xs, sums);
    else
        packed_multiply_kind<COLUMNS, PACKED_Q6>(n, p.low, t.unit, weights, xs, sums);
}
