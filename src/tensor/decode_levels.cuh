/* Decoding of the formats of levels, for decode.cuh: IQ4_NL, IQ4_XS, MXFP4, NVFP4, TQ1_0 and TQ2_0.
 */
#pragma once

#include "tensor/levels.h"

#define LEVEL(level) level,
static __device__ const int8_t decode_iq4_levels[16] = {LEVELS_IQ4(LEVEL)};
static __device__ const int8_t decode_fp4_levels[16] = {LEVELS_FP4(LEVEL)};
#undef LEVEL

/* Value i of 32 whose nibbles lie in 16 bytes. */
DECODE_FN void decode_iq4(const uint8_t *qs, int i, float scale, float *out)
{
    const decode_bytes bytes = decode_u64(qs + i % 16);
    for (int j = 0; j < 8; j++)
        out[j] =
            __fmul_rn(scale, (float)decode_iq4_levels[decode_byte(bytes, j) >> i / 16 * 4 & 15]);
}

DECODE_FN void decode_iq4_nl(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 32 * BLOCK_BYTES_IQ4_NL;
    decode_iq4(block + 2, (int)(i % 32), decode_f16(block), out);
}

DECODE_FN void decode_iq4_xs(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ4_XS;
    const int sub = (int)(i % 256) / 32;
    const int low = block[4 + sub / 2] >> sub % 2 * 4 & 15;
    const int high = (int)(decode_u16(block + 2) >> 2 * sub & 3);
    const float scale = __fmul_rn(decode_f16(block), (float)((low | high << 4) - 32));
    decode_iq4(block + 8 + 16 * sub, (int)(i % 32), scale, out);
}

DECODE_FN void decode_mxfp4(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 32 * BLOCK_BYTES_MXFP4;
    const float scale = stored_mxfp4_scale(block[0]);
    const decode_bytes bytes = decode_u64(block + 1 + (int)(i % 16));
    for (int j = 0; j < 8; j++)
        out[j] = __fmul_rn(
            scale, (float)decode_fp4_levels[decode_byte(bytes, j) >> (int)(i % 32) / 16 * 4 & 15]);
}

DECODE_FN void decode_nvfp4(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 64 * BLOCK_BYTES_NVFP4;
    const int sub = (int)(i % 64) / 16, bits = block[sub] & 0x7f;
    const float scale = bits == 0x7f ? 0.0f : f8_to_f32((uint8_t)bits) * 0.5f;
    const decode_bytes bytes = decode_u64(block + 4 + 8 * sub);
    for (int j = 0; j < 8; j++)
        out[j] = __fmul_rn(
            scale, (float)decode_fp4_levels[decode_byte(bytes, j) >> (int)(i % 16) / 8 * 4 & 15]);
}

DECODE_FN void decode_tq1_0(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_TQ1_0;
    const float d = decode_f16(block + 52);
    const int first = (int)(i % 256);
    for (int v = first; v < first + 8; v++) {
        const int byte = v < 160 ? v % 32 : v < 240 ? 32 + v % 16 : 48 + v % 4;
        const int level = v < 160 ? v / 32 : v < 240 ? (v - 160) / 16 : (v - 240) / 4;
        int share = block[byte];
        for (int n = 0; n < level; n++)
            share = share * 3 & 0xff;
        out[v - first] = __fmul_rn(d, (float)((share * 3 >> 8) - 1));
    }
}

DECODE_FN void decode_tq2_0(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_TQ2_0;
    const int v = (int)(i % 256);
    const decode_bytes bytes = decode_u64(block + v / 128 * 32 + v % 32);
    for (int j = 0; j < 8; j++)
        out[j] = __fmul_rn(decode_f16(block + 64),
                           (float)((decode_byte(bytes, j) >> v % 128 / 32 * 2 & 3) - 1));
}
