/* Decoding of the blocks of 256: Q2_K to Q6_K and Q8_K (drawn in codec_blocks.h).
 *
 * Each decoder unpacks its levels into one byte a value and its sub-block scales into one integer
 * each, then applies the formula. The float operations are in ggml's order, so the results have the
 * same bits. The encoders are in codec_k_encode*.c.
 */
#include "tensor/codec_blocks.h"
#include "tensor/codec_k.h"
#include "tensor/codec_table.h"
#include "tensor/float16.h"

#include <string.h>

/* Two bits a value as Q2_K and Q3_K hold them. */
static void unpack_pairs(const uint8_t *qs, uint8_t *levels)
{
    for (int i = 0; i < BLOCK_K; i++)
        levels[i] = qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

/* Four bits a value as Q4_K and Q5_K hold them. */
static void unpack_nibbles(const uint8_t *qs, uint8_t *levels)
{
    for (int i = 0; i < BLOCK_K; i++)
        levels[i] = qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 0xf;
}

/* One bit a value as Q3_K and Q5_K hold it, set at position `shift` of the level. */
static void unpack_bits(const uint8_t *bits, int shift, uint8_t *levels)
{
    for (int i = 0; i < BLOCK_K; i++)
        levels[i] |= (uint8_t)((bits[i % 32] >> i / 32 & 1) << shift);
}

void k_pack_pairs(const uint8_t *levels, uint8_t *qs)
{
    for (int i = 0; i < BLOCK_K; i++)
        qs[i / 128 * 32 + i % 32] |= (uint8_t)((levels[i] & 3) << (i % 128 / 32 * 2));
}

void k_pack_nibbles(const uint8_t *levels, uint8_t *qs)
{
    for (int i = 0; i < BLOCK_K; i++)
        qs[i / 64 * 32 + i % 32] |= (uint8_t)((levels[i] & 0xf) << (i % 64 / 32 * 4));
}

void k_pack_bits(const uint8_t *levels, int shift, uint8_t *bits)
{
    for (int i = 0; i < BLOCK_K; i++)
        bits[i % 32] |= (uint8_t)((levels[i] >> shift & 1) << i / 32);
}

static void q2_k_values(const block_q2_k *block, float *dst)
{
    uint8_t levels[BLOCK_K];
    unpack_pairs(block->qs, levels);
    float d = f16_to_f32(block->d), dmin = f16_to_f32(block->dmin);
    for (int i = 0; i < BLOCK_K; i++) {
        float scale = d * (float)(block->scales[i / 16] & 0xf);
        float min = dmin * (float)(block->scales[i / 16] >> 4);
        dst[i] = scale * (float)levels[i] - min;
    }
}

static void unpack_q3_k_scales(const uint8_t *packed, int *scales)
{
    for (int j = 0; j < BLOCK_K / 16; j++) {
        int low = packed[j % 8] >> j / 8 * 4 & 0xf;
        int high = packed[8 + j % 4] >> j / 4 * 2 & 3;
        scales[j] = (high << 4 | low) - 32;
    }
}

static void q3_k_values(const block_q3_k *block, float *dst)
{
    uint8_t levels[BLOCK_K];
    int scales[BLOCK_K / 16];
    unpack_pairs(block->qs, levels);
    unpack_bits(block->hmask, 2, levels);
    unpack_q3_k_scales(block->scales, scales);
    float d = f16_to_f32(block->d);
    for (int i = 0; i < BLOCK_K; i++)
        dst[i] = d * (float)scales[i / 16] * (float)(levels[i] - 4);
}

static void unpack_scales(const uint8_t *packed, uint8_t *scales, uint8_t *mins)
{
    for (int j = 0; j < 4; j++) {
        scales[j] = packed[j] & 0x3f;
        mins[j] = packed[4 + j] & 0x3f;
        scales[4 + j] = (uint8_t)((packed[8 + j] & 0xf) | packed[j] >> 6 << 4);
        mins[4 + j] = (uint8_t)(packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4);
    }
}

void k_pack_scales(const uint8_t *scales, const uint8_t *mins, uint8_t *packed)
{
    for (int j = 0; j < 4; j++) {
        packed[j] = (uint8_t)(scales[j] | scales[4 + j] >> 4 << 6);
        packed[4 + j] = (uint8_t)(mins[j] | mins[4 + j] >> 4 << 6);
        packed[8 + j] = (uint8_t)((scales[4 + j] & 0xf) | (mins[4 + j] & 0xf) << 4);
    }
}

/* The formula that Q4_K and Q5_K share. */
static void apply_scales_and_mins(const uint8_t *levels, const uint8_t *packed, float d, float dmin,
                                  float *dst)
{
    uint8_t scales[BLOCK_K / 32], mins[BLOCK_K / 32];
    unpack_scales(packed, scales, mins);
    for (int j = 0; j < BLOCK_K / 32; j++, dst += 32, levels += 32) {
        float scale = d * (float)scales[j], min = dmin * (float)mins[j];
        for (int i = 0; i < 32; i++)
            dst[i] = scale * (float)levels[i] - min;
    }
}

static void q4_k_values(const block_q4_k *block, float *dst)
{
    uint8_t levels[BLOCK_K];
    unpack_nibbles(block->qs, levels);
    apply_scales_and_mins(levels, block->scales, f16_to_f32(block->d), f16_to_f32(block->dmin),
                          dst);
}

static void q5_k_values(const block_q5_k *block, float *dst)
{
    uint8_t levels[BLOCK_K];
    unpack_nibbles(block->qs, levels);
    unpack_bits(block->qh, 4, levels);
    apply_scales_and_mins(levels, block->scales, f16_to_f32(block->d), f16_to_f32(block->dmin),
                          dst);
}

static void q6_k_values(const block_q6_k *block, float *dst)
{
    float d = f16_to_f32(block->d);
    for (int i = 0; i < BLOCK_K; i++) {
        int half = i / 128, within = i % 128;
        int low = block->ql[half * 64 + within % 64] >> within / 64 * 4 & 0xf;
        int high = block->qh[half * 32 + within % 32] >> within / 32 * 2 & 3;
        float scale = d * (float)block->scales[i / 16];
        dst[i] = scale * (float)((high << 4 | low) - 32);
    }
}

static void q8_k_values(const block_q8_k *block, float *dst)
{
    for (int i = 0; i < BLOCK_K; i++)
        dst[i] = block->d * (float)block->qs[i];
}

CODEC(Q2_K, q2_k, BLOCK_K, encode_q2_k)
CODEC(Q3_K, q3_k, BLOCK_K, encode_q3_k)
CODEC(Q4_K, q4_k, BLOCK_K, encode_q4_k)
CODEC(Q5_K, q5_k, BLOCK_K, encode_q5_k)
CODEC(Q6_K, q6_k, BLOCK_K, encode_q6_k)
CODEC(Q8_K, q8_k, BLOCK_K, encode_q8_k)
