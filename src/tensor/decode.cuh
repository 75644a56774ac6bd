/* Eight neighbouring values of a stored row as floats, for every weight type, on the GPU.
 *
 * All formats keep the values of an aligned group of eight in neighbouring bytes and under one
 * scale (codec_blocks.h draws them). The floats are the ones that dtype_decode() gives.
 */
#pragma once

#include "quipu_kernel.h"
#include "tensor/codec_blocks.h"
#include "tensor/float16.h"
#include "tensor/float8.h"
#include "tensor/stored.h"

#include <cuda_fp16.h>

#define DECODE_FN __device__ static __forceinline__

/* Little-endian loads from any address; blocks lie at odd multiples of 2. */
DECODE_FN uint32_t decode_u16(const uint8_t *p)
{
    if (((uintptr_t)p & 1) == 0) return __ldg((const uint16_t *)p);
    return __ldg(p) | (uint32_t)__ldg(p + 1) << 8;
}
DECODE_FN uint32_t decode_u32(const uint8_t *p)
{
    if (((uintptr_t)p & 3) == 0) return __ldg((const uint32_t *)p);
    return decode_u16(p) | decode_u16(p + 2) << 16;
}
DECODE_FN float decode_f16(const uint8_t *p)
{
    return __half2float(__ushort_as_half((unsigned short)decode_u16(p)));
}

/* Eight bytes; a nibble, or bits, of each. */
struct decode_bytes {
    uint32_t low, high;
};
DECODE_FN decode_bytes decode_u64(const uint8_t *p)
{
    return decode_bytes{decode_u32(p), decode_u32(p + 4)};
}
DECODE_FN int decode_byte(decode_bytes bytes, int i)
{
    return (int)((i < 4 ? bytes.low : bytes.high) >> 8 * (i & 3) & 0xff);
}

/* The formats of 32 values in 4 or 5 bits; `bytes` of a block, with d, or d and m, in front. */
DECODE_FN void decode_nibbles(const uint8_t *row, int64_t i, int bytes, bool min, bool fifth,
                              float *out)
{
    const uint8_t *block = row + i / 32 * bytes;
    int first = (int)(i % 32);
    float d = decode_f16(block), m = min ? decode_f16(block + 2) : 0.0f;
    const uint8_t *at = block + (min ? 4 : 2);
    uint32_t high = fifth ? decode_u32(at) >> first : 0;
    if (fifth) at += 4;
    decode_bytes q = decode_u64(at + first % 16);
    int shift = first < 16 ? 0 : 4, middle = min ? 0 : fifth ? 16 : 8;
    for (int j = 0; j < 8; j++) {
        int level = (decode_byte(q, j) >> shift & 15) | (int)(high >> j & 1) << 4;
        float scaled = d * (float)(level - middle);
        out[j] = min ? scaled + m : scaled;
    }
}

DECODE_FN void decode_q8_0(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 32 * BLOCK_BYTES_Q8_0;
    float d = decode_f16(block);
    decode_bytes q = decode_u64(block + 2 + i % 32);
    for (int j = 0; j < 8; j++)
        out[j] = d * (float)(int8_t)decode_byte(q, j);
}

DECODE_FN void decode_q4_5_k(const uint8_t *row, int64_t i, bool fifth, float *out)
{
    const uint8_t *block = row + i / 256 * (fifth ? BLOCK_BYTES_Q5_K : BLOCK_BYTES_Q4_K);
    int first = (int)(i % 256), group = first / 32, scale, min;
    stored_scale_min(block + 4, group, &scale, &min);
    float d = decode_f16(block) * (float)scale, m = decode_f16(block + 2) * (float)min;
    const uint8_t *qs = block + 16 + (fifth ? 32 : 0);
    decode_bytes q = decode_u64(qs + 32 * (first / 64) + first % 32), high = {0, 0};
    if (fifth) high = decode_u64(block + 16 + first % 32);
    for (int j = 0; j < 8; j++) {
        int level = decode_byte(q, j) >> 4 * (group & 1) & 15;
        level |= (decode_byte(high, j) >> group & 1) << 4;
        out[j] = __fsub_rn(__fmul_rn(d, (float)level), m);
    }
}

DECODE_FN void decode_q6_k(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_Q6_K;
    int first = (int)(i % 256), half = first / 128, rest = first % 128;
    decode_bytes low = decode_u64(block + 64 * half + rest % 64);
    decode_bytes high = decode_u64(block + 128 + 32 * half + rest % 32);
    float d = decode_f16(block + 208) * (float)(int8_t)__ldg(block + 192 + first / 16);
    for (int j = 0; j < 8; j++) {
        int level = (decode_byte(low, j) >> 4 * (rest / 64) & 15) |
                    (decode_byte(high, j) >> 2 * (rest / 32) & 3) << 4;
        out[j] = d * (float)(level - 32);
    }
}

DECODE_FN void decode_q2_k(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_Q2_K;
    int first = (int)(i % 256), rest = first % 128;
    decode_bytes q = decode_u64(block + 16 + 32 * (first / 128) + rest % 32);
    int packed = __ldg(block + first / 16);
    float d = decode_f16(block + 80) * (float)(packed & 15);
    float m = decode_f16(block + 82) * (float)(packed >> 4);
    for (int j = 0; j < 8; j++) {
        int level = decode_byte(q, j) >> 2 * (rest / 32) & 3;
        out[j] = __fsub_rn(__fmul_rn(d, (float)level), m);
    }
}

DECODE_FN void decode_q3_k(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 256 * BLOCK_BYTES_Q3_K, *scales = block + 96;
    int first = (int)(i % 256), rest = first % 128, j16 = first / 16;
    int scale = (scales[j16 % 8] >> j16 / 8 * 4 & 15) | (scales[8 + j16 % 4] >> j16 / 4 * 2 & 3)
                                                            << 4;
    float d = decode_f16(block + 108) * (float)(scale - 32);
    decode_bytes low = decode_u64(block + 32 + 32 * (first / 128) + rest % 32);
    decode_bytes high = decode_u64(block + first % 32);
    for (int j = 0; j < 8; j++) {
        int level = (decode_byte(low, j) >> 2 * (rest / 32) & 3) |
                    (decode_byte(high, j) >> first / 32 & 1) << 2;
        out[j] = d * (float)(level - 4);
    }
}

/* Two numbers of F8, the lower 16 bits of `two`, as F16, the first one in the lower half: exact. */
DECODE_FN uint32_t decode_f8x2(uint32_t two)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)two));
    return pair;
}

DECODE_FN void decode_f8_four(uint32_t four, float *out)
{
    uint32_t low = decode_f8x2(four), high = decode_f8x2(four >> 16);
    float2 a = __half22float2(*(__half2 *)&low), b = __half22float2(*(__half2 *)&high);
    out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y;
}

DECODE_FN void decode_f8(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *p = row + i;
    decode_bytes q = ((uintptr_t)p & 7) == 0
                         ? decode_bytes{__ldg((const uint2 *)p).x, __ldg((const uint2 *)p).y}
                         : decode_u64(p);
    decode_f8_four(q.low, out);
    decode_f8_four(q.high, out + 4);
}

DECODE_FN void decode_f8_128(const uint8_t *row, int64_t i, float *out)
{
    const uint8_t *block = row + i / 128 * BLOCK_BYTES_F8_128;
    float d = __uint_as_float(decode_u32(block));
    decode_f8(block + 4, i % 128, out);
    for (int j = 0; j < 8; j++)
        out[j] *= d;
}

/* Eight two-byte floats. */
template <dtype T> DECODE_FN void decode_words(uint4 all, float *out)
{
    const uint32_t words[4] = {all.x, all.y, all.z, all.w};
    for (int j = 0; j < 4; j++) {
        if (T == DTYPE_BF16) {
            out[2 * j] = __uint_as_float(words[j] << 16);
            out[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
        } else {
            out[2 * j] = __half2float(__ushort_as_half((unsigned short)words[j]));
            out[2 * j + 1] = __half2float(__ushort_as_half((unsigned short)(words[j] >> 16)));
        }
    }
}

/* The same from any address that is a multiple of 2. */
template <dtype T> DECODE_FN void decode_halves(const uint8_t *row, int64_t i, float *out)
{
    const uint16_t *p = (const uint16_t *)row + i;
    if (((uintptr_t)p & 15) == 0) return decode_words<T>(__ldg((const uint4 *)p), out);
    uint32_t words[4];
    for (int j = 0; j < 4; j++)
        words[j] = __ldg(p + 2 * j) | (uint32_t)__ldg(p + 2 * j + 1) << 16;
    decode_words<T>(make_uint4(words[0], words[1], words[2], words[3]), out);
}

DECODE_FN void decode_f32(const uint8_t *row, int64_t i, float *out)
{
    const float *p = (const float *)row + i;
    if (((uintptr_t)p & 15) == 0) {
        float4 low = __ldg((const float4 *)p), high = __ldg((const float4 *)p + 1);
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
    } else {
        for (int j = 0; j < 8; j++)
            out[j] = __ldg(p + j);
    }
}

/* Values [i, i + 8) of a row, i a multiple of 8 and all eight inside the row. T is the row's type,
 * or DTYPE_COUNT for one that `type` says at run time. */
template <dtype T> DECODE_FN void decode8(dtype type, const void *data, int64_t i, float *out)
{
    const uint8_t *row = (const uint8_t *)data;
    switch (T == DTYPE_COUNT ? type : T) {
    case DTYPE_F32:
        return decode_f32(row, i, out);
    case DTYPE_F16:
        return decode_halves<DTYPE_F16>(row, i, out);
    case DTYPE_BF16:
        return decode_halves<DTYPE_BF16>(row, i, out);
    case DTYPE_Q8_0:
        return decode_q8_0(row, i, out);
    case DTYPE_Q4_0:
        return decode_nibbles(row, i, BLOCK_BYTES_Q4_0, false, false, out);
    case DTYPE_Q4_1:
        return decode_nibbles(row, i, BLOCK_BYTES_Q4_1, true, false, out);
    case DTYPE_Q5_0:
        return decode_nibbles(row, i, BLOCK_BYTES_Q5_0, false, true, out);
    case DTYPE_Q5_1:
        return decode_nibbles(row, i, BLOCK_BYTES_Q5_1, true, true, out);
    case DTYPE_Q2_K:
        return decode_q2_k(row, i, out);
    case DTYPE_Q3_K:
        return decode_q3_k(row, i, out);
    case DTYPE_Q4_K:
        return decode_q4_5_k(row, i, false, out);
    case DTYPE_Q5_K:
        return decode_q4_5_k(row, i, true, out);
    case DTYPE_F8:
        return decode_f8(row, i, out);
    case DTYPE_F8_128:
        return decode_f8_128(row, i, out);
    default:
        return decode_q6_k(row, i, out);
    }
}

/* The same where the row of n values, of a plain type, may end inside the eight: zeros after it.
 */
template <dtype T>
DECODE_FN void decode8_of(dtype type, const void *data, int64_t i, int64_t n, float *out)
{
    if (i + 8 <= n) return decode8<T>(type, data, i, out);
    dtype t = T == DTYPE_COUNT ? type : T;
    for (int j = 0; j < 8; j++) {
        out[j] = 0.0f;
        if (i + j >= n) continue;
        if (t == DTYPE_F32)
            out[j] = ((const float *)data)[i + j];
        else if (t == DTYPE_F16)
            out[j] = __half2float(((const __half *)data)[i + j]);
        else if (t == DTYPE_F8)
            out[j] = f8_to_f32(((const uint8_t *)data)[i + j]);
        else
            out[j] = bf16_to_f32(((const uint16_t *)data)[i + j]);
    }
}
