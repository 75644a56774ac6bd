/* Decoding of the formats of levels and grids (drawn in codec_blocks.h, tables in grids.h): IQ1 to
 * IQ4, TQ1_0, TQ2_0, NVFP4. The float operations are in ggml's order, so the results have the same
 * bits. Only the formats of levels are encoded, in codec_k_encode.c.
 */
#include "tensor/codec_blocks.h"
#include "tensor/codec_k.h"
#include "tensor/float16.h"
#include "tensor/float8.h"
#include "tensor/grids.h"
#include "tensor/levels.h"

#include <string.h>

enum { SUB_BLOCKS = BLOCK_K / BLOCK_32 };

/* ---- Levels -------------------------------------------------------------------------------- */

/* 2 n values of nibbles in n bytes, halves apart. */
static void put_nibbles(const uint8_t *qs, int n, const int8_t *levels, float scale, float *dst)
{
    for (int i = 0; i < n; i++) {
        dst[i] = scale * (float)levels[qs[i] & 0xf];
        dst[n + i] = scale * (float)levels[qs[i] >> 4];
    }
}

static void iq4_nl_values(const block_iq4_nl *block, float *dst)
{
    put_nibbles(block->qs, BLOCK_32 / 2, levels_iq4, f16_to_f32(block->d), dst);
}

static void iq4_xs_values(const block_iq4_xs *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int j = 0; j < SUB_BLOCKS; j++) {
        const int low = block->scales_l[j / 2] >> j % 2 * 4 & 0xf, high = block->scales_h >> 2 * j;
        const float scale = d * (float)((low | (high & 3) << 4) - 32);
        put_nibbles(block->qs + 16 * j, BLOCK_32 / 2, levels_iq4, scale, dst + 32 * j);
    }
}

static void nvfp4_values(const block_nvfp4 *block, float *dst)
{
    for (int j = 0; j < 4; j++) {
        const uint8_t bits = block->d[j] & 0x7f;
        const float scale = bits == 0x7f ? 0 : f8_to_f32(bits) * 0.5f;
        put_nibbles(block->qs + 8 * j, 8, levels_fp4, scale, dst + 16 * j);
    }
}

/* The next level of each of n bytes of TQ1_0, whose share then is that of the levels after it. */
static float *put_thirds(uint8_t *shares, int n, float d, float *dst)
{
    for (int i = 0; i < n; i++, dst++) {
        *dst = d * (float)((shares[i] * 3 >> 8) - 1);
        shares[i] = (uint8_t)(shares[i] * 3);
    }
    return dst;
}

static void tq1_0_values(const block_tq1_0 *stored, float *dst)
{
    block_tq1_0 block = *stored;
    const float d = f16_to_f32(block.d);
    for (int n = 0; n < 5; n++)
        dst = put_thirds(block.qs, 32, d, dst);
    for (int n = 0; n < 5; n++)
        dst = put_thirds(block.qs + 32, 16, d, dst);
    for (int n = 0; n < 4; n++)
        dst = put_thirds(block.qh, 4, d, dst);
}

static void tq2_0_values(const block_tq2_0 *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int i = 0; i < BLOCK_K; i++)
        dst[i] = d * (float)((block->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
}

/* ---- Grids --------------------------------------------------------------------------------- */

static uint32_t word_at(const uint8_t *bytes, int i)
{
    uint32_t word;
    memcpy(&word, bytes + 4 * i, sizeof word);
    return word;
}

/* n values, a multiple of four, of the words of an entry; bit i of `signs` is the sign of value i.
 */
static void put_entry(const uint32_t *words, int n, unsigned signs, float scale, float *dst)
{
    for (int i = 0; i < n; i++) {
        const float value = scale * (float)(words[i / 4] >> i % 4 * 8 & 0xff);
        dst[i] = signs >> i & 1 ? -value : value;
    }
}

/* Eight signs of the 7 that are stored. */
static unsigned even_signs(unsigned seven)
{
    seven &= 0x7f;
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

static void iq3_xxs_values(const block_iq3_xxs *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int j = 0; j < SUB_BLOCKS; j++) {
        const uint32_t rest = word_at(block->rest, j);
        const float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
        for (int k = 0; k < 8; k++, dst += 4)
            put_entry(&grid_iq3_xxs[block->qs[8 * j + k]], 4,
                      even_signs(rest >> k / 2 * 7) >> k % 2 * 4, scale, dst);
    }
}

static void iq3_s_values(const block_iq3_s *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int j = 0; j < SUB_BLOCKS; j++) {
        const float scale = d * (float)(1 + 2 * (block->scales[j / 2] >> j % 2 * 4 & 0xf));
        for (int k = 0; k < 8; k++, dst += 4) {
            const int entry = block->qs[8 * j + k] | (block->qh[j] >> k & 1) << 8;
            put_entry(&grid_iq3_s[entry], 4, (unsigned)block->signs[4 * j + k / 2] >> k % 2 * 4,
                      scale, dst);
        }
    }
}

static void iq2_xxs_values(const block_iq2_xxs *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int j = 0; j < SUB_BLOCKS; j++) {
        const uint32_t rest = word_at(block->qs, 2 * j + 1);
        const float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++, dst += 8)
            put_entry(&grid_iq2_xxs[2 * block->qs[8 * j + l]], 8, even_signs(rest >> 7 * l), scale,
                      dst);
    }
}

/* Of values 16 j on, with nibbles as scales. */
static float iq2_scale(float d, const uint8_t *scales, int j)
{
    return d * (0.5f + (float)(scales[j / 2] >> j % 2 * 4 & 0xf)) * 0.25f;
}

static void iq2_xs_values(const block_iq2_xs *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int l = 0; l < BLOCK_K / 8; l++, dst += 8) {
        const unsigned both = block->qs[2 * l] | (unsigned)block->qs[2 * l + 1] << 8;
        put_entry(&grid_iq2_xs[2 * (both & 511)], 8, even_signs(both >> 9),
                  iq2_scale(d, block->scales, l / 2), dst);
    }
}

static void iq2_s_values(const block_iq2_s *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int l = 0; l < BLOCK_K / 8; l++, dst += 8) {
        const int entry = block->qs[l] | (block->qh[l / 4] >> l % 4 * 2 & 3) << 8;
        put_entry(&grid_iq2_s[2 * entry], 8, block->signs[l], iq2_scale(d, block->scales, l / 2),
                  dst);
    }
}

/* Eight values of IQ1. */
static void put_shifted(int entry, float shift, float scale, float *dst)
{
    for (int i = 0; i < 8; i++) {
        const int digit = (int)(grid_iq1_s[2 * entry + i / 4] >> i % 4 * 8 & 0xff);
        dst[i] = scale * ((float)(digit - 1) + shift);
    }
}

static void iq1_s_values(const block_iq1_s *block, float *dst)
{
    const float d = f16_to_f32(block->d);
    for (int l = 0; l < BLOCK_K / 8; l++, dst += 8) {
        const int qh = block->qh[l / 4];
        put_shifted(block->qs[l] | (qh >> l % 4 * 3 & 7) << 8, qh & 0x8000 ? -0.125f : 0.125f,
                    d * (float)(2 * (qh >> 12 & 7) + 1), dst);
    }
}

static void iq1_m_values(const block_iq1_m *block, float *dst)
{
    uint16_t half = 0;
    for (int j = 0; j < 4; j++)
        half |= (uint16_t)(block->scales[j] >> 12 << 4 * j);
    const float d = f16_to_f32(half);
    for (int l = 0; l < BLOCK_K / 8; l++, dst += 8) {
        const int qh = block->qh[l / 2] >> l % 2 * 4, scale = block->scales[l / 8] >> l % 8 / 2 * 3;
        put_shifted(block->qs[l] | (qh & 7) << 8, qh & 8 ? -0.125f : 0.125f,
                    d * (float)(2 * (scale & 7) + 1), dst);
    }
}

CODEC(IQ4_NL, iq4_nl, BLOCK_32, encode_iq4_nl)
CODEC(IQ4_XS, iq4_xs, BLOCK_K, encode_iq4_xs)
CODEC(NVFP4, nvfp4, 64, NULL)
CODEC(TQ1_0, tq1_0, BLOCK_K, NULL)
CODEC(TQ2_0, tq2_0, BLOCK_K, NULL)
CODEC(IQ3_XXS, iq3_xxs, BLOCK_K, NULL)
CODEC(IQ3_S, iq3_s, BLOCK_K, NULL)
CODEC(IQ2_XXS, iq2_xxs, BLOCK_K, NULL)
CODEC(IQ2_XS, iq2_xs, BLOCK_K, NULL)
CODEC(IQ2_S, iq2_s, BLOCK_K, NULL)
CODEC(IQ1_S, iq1_s, BLOCK_K, NULL)
CODEC(IQ1_M, iq1_m, BLOCK_K, NULL)
