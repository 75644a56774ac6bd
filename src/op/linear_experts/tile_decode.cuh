/* Weights of tiles in BF16: half of 64 neighbouring columns of a row, for types with blocks whose
 * scales and numbers a thread loads once for all of them (codec_blocks.h draws them).
 *
 * tile_half<T>::decode(row, k, half, pieces, at): four pieces of eight columns, of which piece i is
 * number at[i] of the eight from column k on, a multiple of 64.
 */
#pragma once

#include "op/device.cuh"
#include "tensor/codec_blocks.h"

template <dtype T> struct tile_half {
    enum { HAS = 0 };
};

/* N words from any address. */
template <int N> DEVICE_FN void tile_words(const char *at, uint32_t (&out)[N])
{
    const uint32_t shift = (uint32_t)(uintptr_t)at & 3;
    const uint32_t *words = (const uint32_t *)(at - shift);
    uint32_t low = __ldg(words);
#pragma unroll
    for (int i = 0; i < N; i++) {
        /* nothing is read after the last word that has a byte of them */
        const uint32_t high = shift || i + 1 < N ? __ldg(words + i + 1) : 0;
        out[i] = __funnelshift_r(low, high, 8 * shift);
        low = high;
    }
}

DEVICE_FN int tile_byte(uint32_t word, int i)
{
    return (int)(word >> 8 * i & 0xff);
}

DEVICE_FN uint4 tile_piece(const float (&v)[8])
{
    return make_uint4(device_pack2(DTYPE_BF16, v[0], v[1]), device_pack2(DTYPE_BF16, v[2], v[3]),
                      device_pack2(DTYPE_BF16, v[4], v[5]), device_pack2(DTYPE_BF16, v[6], v[7]));
}

/* Rows are at multiples of 16 bytes. 64 columns are two blocks of 32, in the nibbles of 32 bytes.
 */
template <> struct tile_half<DTYPE_Q4_K> {
    enum { HAS = 1 };
    static DEVICE_METHOD void decode(const char *row, int k, int half, uint4 *pieces, int *at)
    {
        const char *block = row + k / 256 * BLOCK_BYTES_Q4_K;
        const uint4 head = __ldg((const uint4 *)block);
        const uint4 raw = __ldg((const uint4 *)(block + 16 + k % 256 / 2 + 16 * half));
        const float2 d = __half22float2(*(const __half2 *)&head.x);
        const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int group = k % 256 / 32 + i / 2, j = group % 4;
            const uint32_t scales = group < 4 ? head.y & 0x3f3f3f3f
                                              : (head.w & 0x0f0f0f0f) | (head.y >> 2 & 0x30303030);
            const uint32_t minima = group < 4
                                        ? head.z & 0x3f3f3f3f
                                        : (head.w >> 4 & 0x0f0f0f0f) | (head.z >> 2 & 0x30303030);
            const float scale = d.x * (float)tile_byte(scales, j);
            const float min = d.y * (float)tile_byte(minima, j);
            float v[8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const uint32_t nibbles = word[i % 2 * 2 + n / 4] >> i / 2 * 4 & 0x0f0f0f0f;
                v[n] = fmaf(scale, (float)tile_byte(nibbles, n % 4), -min);
            }
            pieces[i] = tile_piece(v);
            at[i] = i / 2 * 4 + 2 * half + i % 2;
        }
    }
};

/* A block of 32 for each half. */
template <> struct tile_half<DTYPE_MXFP4> {
    enum { HAS = 1 };
    static DEVICE_METHOD void decode(const char *row, int k, int half, uint4 *pieces, int *at)
    {
        const char *block = row + (k / 32 + half) * BLOCK_BYTES_MXFP4;
        const uint32_t e = __ldg((const uint8_t *)block);
        uint32_t word[4];
        tile_words(block + 1, word);
        /* As in eight_weights: numbers as F16 are 2^14 times smaller, and the scale is for twice
         * them. */
        const float scale = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23) * 32768.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const uint32_t q = word[i % 2 * 2 + n / 4] >> (8 * (n % 4) + i / 2 * 4);
                const uint32_t bits = (q & 8) << 12 | (q & 7) << 9;
                v[n] = __half2float(__ushort_as_half((unsigned short)bits)) * scale;
            }
            pieces[i] = tile_piece(v);
            at[i] = 4 * half + i;
        }
    }
};

/* Columns k to k + 31 or the 32 after them: bytes of low bits, and two bits each of 32 bytes. */
template <> struct tile_half<DTYPE_Q6_K> {
    enum { HAS = 1 };
    static DEVICE_METHOD void decode(const char *row, int k, int half, uint4 *pieces, int *at)
    {
        const char *block = row + k / 256 * BLOCK_BYTES_Q6_K;
        const int first = k % 256 + 32 * half, side = first / 128, rest = first % 128;
        const float d = __half2float(*(const __half *)(block + 208));
        uint32_t low[8], high[8];
        tile_words(block + 64 * side + rest % 64, low);
        tile_words(block + 128 + 32 * side, high);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float scale = d * (float)(int8_t)__ldg(block + 192 + first / 16 + i / 2);
            float v[8];
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const uint32_t q = (low[2 * i + n / 4] >> rest / 64 * 4 & 0x0f0f0f0f) |
                                   (high[2 * i + n / 4] >> rest / 32 * 2 & 0x03030303) << 4;
                v[n] = scale * (float)(tile_byte(q, n % 4) - 32);
            }
            pieces[i] = tile_piece(v);
            at[i] = 4 * half + i;
        }
    }
};
