/* Codecs of the blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1 (drawn in codec_blocks.h).
 *
 * Two kinds: "symmetric" ones have a scale, and "affine" ones a scale and a minimum. The scale
 * comes from the block's extremes without a search, and the arithmetic is ggml's step by step in
 * float32, because encoded files are compared bit for bit. With an importance matrix it comes from
 * the search of the K formats.
 */
#include "tensor/codec_blocks.h"
#include "tensor/codec_k.h"
#include "tensor/codec_table.h"
#include "tensor/float16.h"

#include <math.h>
#include <string.h>

/* x truncated to a whole number and clamped to [0, last]; a NaN becomes 0. */
static uint8_t level_of(float x, int last)
{
    if (!(x > 0)) return 0;
    return (uint8_t)(x < (float)last ? (int)x : last);
}

/* x rounded, halves away from zero, and clamped to [-127, 127]; a NaN becomes 0. The fraction is
 * exact, unlike |x| + 0.5, and without roundf() the loop can use vector registers. */
static int8_t signed_level_of(float x)
{
    float size = fabsf(x);
    size = size < 127 ? size : 127;
    int whole = (int)size;
    whole += size - (float)whole >= 0.5f;
    return (int8_t)(isnan(x) ? 0 : x < 0 ? -whole : whole);
}

/* 1 / d, or 0 where that is not finite: d is then far below what F16 can hold. */
static float inverse_of(float d)
{
    float inverse = 1 / d;
    return isfinite(inverse) ? inverse : 0;
}

/* The value of largest magnitude, with its sign; of equal ones the first. */
static float extreme_of(const float *x)
{
    float extreme = 0;
    for (int i = 0; i < BLOCK_32; i++) {
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    }
    return extreme;
}

/* d, in F16, and the levels round(x / d) + (last + 1) / 2: the extreme gets level 0, or `last` when
 * the range is cut there. Returns d. */
static uint16_t quantize_symmetric(const float *x, const float *importance, int last,
                                   uint8_t *levels)
{
    int zero = (last + 1) / 2;
    if (importance) return k_search_signed(-zero, x, importance, levels);
    float d = extreme_of(x) / (float)-zero;
    float inverse = inverse_of(d);
    for (int i = 0; i < BLOCK_32; i++)
        levels[i] = level_of(x[i] * inverse + ((float)zero + 0.5f), last);
    return f32_to_f16(d);
}

/* Levels round((x - *min) / d) in [0, last]. Returns d; both are in F16. */
static uint16_t quantize_affine(const float *x, const float *importance, int last, uint8_t *levels,
                                uint16_t *min)
{
    if (importance) return k_search_affine(last, x, importance, min, levels);
    float low = x[0], high = x[0];
    for (int i = 1; i < BLOCK_32; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    float d = (high - low) / (float)last;
    float inverse = inverse_of(d);
    for (int i = 0; i < BLOCK_32; i++)
        levels[i] = level_of((x[i] - low) * inverse + 0.5f, last);
    *min = f32_to_f16(low);
    return f32_to_f16(d);
}

static void pack_nibbles(const uint8_t *levels, uint8_t *qs)
{
    for (int i = 0; i < BLOCK_32 / 2; i++) {
        qs[i] = (uint8_t)((levels[i] & 0xf) | (levels[i + BLOCK_32 / 2] & 0xf) << 4);
    }
}

static void pack_fifth_bits(const uint8_t *levels, uint8_t *qh)
{
    memset(qh, 0, BLOCK_32 / 8);
    for (int i = 0; i < BLOCK_32; i++)
        qh[i / 8] |= (uint8_t)((levels[i] >> 4 & 1) << i % 8);
}

static void unpack_nibbles(const uint8_t *qs, uint8_t *levels)
{
    for (int i = 0; i < BLOCK_32 / 2; i++) {
        levels[i] = qs[i] & 0xf;
        levels[i + BLOCK_32 / 2] = qs[i] >> 4;
    }
}

static void unpack_fifth_bits(const uint8_t *qh, uint8_t *levels)
{
    for (int i = 0; i < BLOCK_32; i++)
        levels[i] |= (uint8_t)((qh[i / 8] >> i % 8 & 1) << 4);
}

static void scale_levels(const uint8_t *levels, int zero, float d, float *dst)
{
    for (int i = 0; i < BLOCK_32; i++)
        dst[i] = d * (float)(levels[i] - zero);
}

static void scale_and_shift_levels(const uint8_t *levels, float d, float m, float *dst)
{
    for (int i = 0; i < BLOCK_32; i++)
        dst[i] = d * (float)levels[i] + m;
}

static void q4_0_values(const block_q4_0 *block, float *dst)
{
    uint8_t levels[BLOCK_32];
    unpack_nibbles(block->qs, levels);
    scale_levels(levels, 8, f16_to_f32(block->d), dst);
}

static void q4_0_block(const float *src, const float *importance, block_q4_0 *block)
{
    uint8_t levels[BLOCK_32];
    block->d = quantize_symmetric(src, importance, 15, levels);
    pack_nibbles(levels, block->qs);
}

static void q4_1_values(const block_q4_1 *block, float *dst)
{
    uint8_t levels[BLOCK_32];
    unpack_nibbles(block->qs, levels);
    scale_and_shift_levels(levels, f16_to_f32(block->d), f16_to_f32(block->m), dst);
}

static void q4_1_block(const float *src, const float *importance, block_q4_1 *block)
{
    uint8_t levels[BLOCK_32];
    block->d = quantize_affine(src, importance, 15, levels, &block->m);
    pack_nibbles(levels, block->qs);
}

static void q5_0_values(const block_q5_0 *block, float *dst)
{
    uint8_t levels[BLOCK_32];
    unpack_nibbles(block->qs, levels);
    unpack_fifth_bits(block->qh, levels);
    scale_levels(levels, 16, f16_to_f32(block->d), dst);
}

static void q5_0_block(const float *src, const float *importance, block_q5_0 *block)
{
    uint8_t levels[BLOCK_32];
    block->d = quantize_symmetric(src, importance, 31, levels);
    pack_nibbles(levels, block->qs);
    pack_fifth_bits(levels, block->qh);
}

static void q5_1_values(const block_q5_1 *block, float *dst)
{
    uint8_t levels[BLOCK_32];
    unpack_nibbles(block->qs, levels);
    unpack_fifth_bits(block->qh, levels);
    scale_and_shift_levels(levels, f16_to_f32(block->d), f16_to_f32(block->m), dst);
}

static void q5_1_block(const float *src, const float *importance, block_q5_1 *block)
{
    uint8_t levels[BLOCK_32];
    block->d = quantize_affine(src, importance, 31, levels, &block->m);
    pack_nibbles(levels, block->qs);
    pack_fifth_bits(levels, block->qh);
}

static void q8_0_values(const block_q8_0 *block, float *dst)
{
    float d = f16_to_f32(block->d);
    for (int i = 0; i < BLOCK_32; i++)
        dst[i] = d * (float)block->qs[i];
}

/* Levels round(x / d) with the largest magnitude at 127. Returns d. */
static float quantize_bytes(const float *x, int8_t *qs)
{
    float d = fabsf(extreme_of(x)) / 127;
    float inverse = inverse_of(d);
    for (int i = 0; i < BLOCK_32; i++)
        qs[i] = signed_level_of(x[i] * inverse);
    return d;
}

static void q8_0_block(const float *src, const float *importance, block_q8_0 *block)
{
    uint8_t levels[BLOCK_32];
    if (!importance) {
        block->d = f32_to_f16(quantize_bytes(src, block->qs));
        return;
    }
    block->d = k_search_signed(-127, src, importance, levels);
    for (int i = 0; i < BLOCK_32; i++)
        block->qs[i] = (int8_t)(levels[i] - 127);
}

static void q8_1_values(const block_q8_1 *block, float *dst)
{
    float d = f16_to_f32(block->d);
    for (int i = 0; i < BLOCK_32; i++)
        dst[i] = d * (float)block->qs[i];
}

static void q8_1_block(const float *src, const float *importance, block_q8_1 *block)
{
    int sum = 0;
    (void)importance;
    float d = quantize_bytes(src, block->qs);
    for (int i = 0; i < BLOCK_32; i++)
        sum += block->qs[i];
    block->d = f32_to_f16(d);
    block->s = f32_to_f16((float)sum * d); /* of the unrounded d, as ggml has it */
}
CODEC_ENCODER(q4_0, BLOCK_32)
CODEC(Q4_0, q4_0, BLOCK_32, encode_q4_0)
CODEC_ENCODER(q4_1, BLOCK_32)
CODEC(Q4_1, q4_1, BLOCK_32, encode_q4_1)
CODEC_ENCODER(q5_0, BLOCK_32)
CODEC(Q5_0, q5_0, BLOCK_32, encode_q5_0)
CODEC_ENCODER(q5_1, BLOCK_32)
CODEC(Q5_1, q5_1, BLOCK_32, encode_q5_1)
CODEC_ENCODER(q8_0, BLOCK_32)
CODEC(Q8_0, q8_0, BLOCK_32, encode_q8_0)
CODEC_ENCODER(q8_1, BLOCK_32)
CODEC(Q8_1, q8_1, BLOCK_32, encode_q8_1)
