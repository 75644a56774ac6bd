/* Decoding of the formats of grids, for decode.cuh: IQ1, IQ2 and IQ3. */
#pragma once

#define GRID static __device__ const
#include "tensor/grids.inc"

/* Four magnitudes; bit j of `signs` makes number j negative. */
DECODE_FN void decode_entry(uint32_t values, uint32_t signs, float scale, float *out)
{
    for (int j = 0; j < 4; j++) {
        const float value = __fmul_rn(scale, (float)(values >> 8 * j & 0xff));
        out[j] = signs >> j & 1 ? -value : value;
    }
}

DECODE_FN void decode_entries(const uint32_t *words, uint32_t signs, float scale, float *out)
{
    decode_entry(words[0], signs, scale, out);
    decode_entry(words[1], signs >> 4, scale, out + 4);
}

DECODE_FN uint32_t decode_even_signs(uint32_t seven)
{
    seven &= 0x7f;
    return seven | (uint32_t)(__popc(seven) & 1) << 7;
}

/* d * (scale + 1/2) * factor, a power of two */
DECODE_FN float decode_half_scale(const uint8_t *d, uint32_t scale, float factor)
{
    return __fmul_rn(decode_f16(d), (float)(2 * scale + 1)) * (0.5f * factor);
}

DECODE_FN void decode_iq3_xxs(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ3_XXS;
    const int v = (int)(i % 256);
    const uint32_t rest = decode_u32(block + 66 + v / 32 * 4);
    const uint32_t signs = decode_even_signs(rest >> v % 32 / 8 * 7);
    const float scale = decode_half_scale(block, rest >> 28, 0.5f);
    const uint32_t words[2] = {grid_iq3_xxs[block[2 + v / 4]], grid_iq3_xxs[block[3 + v / 4]]};
    decode_entries(words, signs, scale, out);
}

DECODE_FN void decode_iq3_s(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ3_S;
    const int v = (int)(i % 256), sub = v / 32;
    const uint32_t high = block[66 + sub] >> v % 32 / 4;
    const float scale = decode_half_scale(block, block[106 + sub / 2] >> sub % 2 * 4 & 15, 2.0f);
    const uint32_t words[2] = {grid_iq3_s[block[2 + v / 4] | (high & 1) << 8],
                               grid_iq3_s[block[3 + v / 4] | (high >> 1 & 1) << 8]};
    decode_entries(words, block[74 + v / 8], scale, out);
}

DECODE_FN void decode_iq2_xxs(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *sub = row + i / 256 * BLOCK_BYTES_IQ2_XXS + 2 + i % 256 / 32 * 8;
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ2_XXS;
    const int l = (int)(i % 32) / 8;
    const uint32_t rest = decode_u32(sub + 4);
    decode_entries(&grid_iq2_xxs[2 * sub[l]], decode_even_signs(rest >> 7 * l),
                   decode_half_scale(block, rest >> 28, 0.25f), out);
}

DECODE_FN void decode_iq2_xs(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ2_XS;
    const int l = (int)(i % 256) / 8;
    const uint32_t both = decode_u16(block + 2 + 2 * l);
    decode_entries(&grid_iq2_xs[2 * (both & 511)], decode_even_signs(both >> 9),
                   decode_half_scale(block, block[66 + l / 4] >> l / 2 % 2 * 4 & 15, 0.25f), out);
}

DECODE_FN void decode_iq2_s(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ2_S;
    const int l = (int)(i % 256) / 8;
    const int entry = block[2 + l] | (block[66 + l / 4] >> l % 4 * 2 & 3) << 8;
    decode_entries(&grid_iq2_s[2 * entry], block[34 + l],
                   decode_half_scale(block, block[74 + l / 4] >> l / 2 % 2 * 4 & 15, 0.25f), out);
}

/* Eight values of IQ1: scale * (value + shift), by eighths. */
DECODE_FN void decode_shifted(int entry, bool negative, float eighth, float *out)
{
    for (int j = 0; j < 8; j++) {
        const int digit = (int)(grid_iq1_s[2 * entry + j / 4] >> j % 4 * 8 & 0xff);
        out[j] = __fmul_rn(eighth, (float)(8 * (digit - 1) + (negative ? -1 : 1)));
    }
}

DECODE_FN void decode_iq1_s(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ1_S;
    const int l = (int)(i % 256) / 8;
    const uint32_t qh = decode_u16(block + 34 + l / 4 * 2);
    decode_shifted(block[2 + l] | (int)(qh >> l % 4 * 3 & 7) << 8, qh >> 15,
                   decode_half_scale(block, qh >> 12 & 7, 0.25f), out);
}

DECODE_FN void decode_iq1_m(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_IQ1_M, *scales = block + 48;
    const int l = (int)(i % 256) / 8;
    uint32_t half = 0;
    for (int j = 0; j < 4; j++)
        half |= (uint32_t)(scales[2 * j + 1] >> 4) << 4 * j;
    const uint32_t qh = block[32 + l / 2] >> l % 2 * 4;
    const uint32_t scale = decode_u16(scales + l / 8 * 2) >> l % 8 / 2 * 3 & 7;
    const float d = __half2float(__ushort_as_half((unsigned short)half));
    decode_shifted(block[l] | (int)(qh & 7) << 8, qh >> 3 & 1,
                   __fmul_rn(d, (float)(2 * scale + 1)) * 0.125f, out);
}
