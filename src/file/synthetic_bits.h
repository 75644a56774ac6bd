/* The generator of synthetic.h: stored bits as a pure function of (seed, tensor, index). */
#pragma once

#include "base/hash.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"

/* One tensor's generator, passed to kernels by value; synthetic_stream_of() makes it. */
typedef struct synthetic_stream {
    uint64_t key; /* of (seed, tensor) */
    float mean;   /* of plain types */
    float unit;   /* plain types: per step of the 17-bit sum; quantised: the mean block scale */
} synthetic_stream;

enum { SYNTHETIC_MAX_BLOCK = 210 }; /* bytes of the largest block below, Q6_K's */

HASH_FN uint64_t synthetic_word(const synthetic_stream *stream, uint64_t counter)
{
    return hash_mix(stream->key ^ counter);
}

/* mean + unit * sum, rounded twice. */
HASH_FN float synthetic_affine(const synthetic_stream *stream, int32_t sum)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(stream->mean, __fmul_rn(stream->unit, (float)sum));
#else
    return stream->mean + stream->unit * (float)sum;
#endif
}

/* From the half of a word that belongs to an element: the sum of two 16-bit numbers around 0, a
 * triangle of deviation 2^16 / sqrt(6), ends at 2.45 deviations. */
HASH_FN float synthetic_from_half(const synthetic_stream *stream, uint32_t half)
{
    return synthetic_affine(stream, (int32_t)(half & 0xffff) + (int32_t)(half >> 16) - 0xffff);
}

/* The value of element `index` of a plain type, before it is rounded to F16 or BF16. */
HASH_FN float synthetic_value(const synthetic_stream *stream, uint64_t index)
{
    uint64_t word = synthetic_word(stream, index >> 1);
    return synthetic_from_half(stream, (uint32_t)(index & 1 ? word >> 32 : word));
}

/* A block's scale from 3 random bits: unit times one of 25, 27, .. 39 over 32; mean 1. */
HASH_FN uint16_t synthetic_scale(const synthetic_stream *stream, uint64_t bits, int negative)
{
    float factor = (float)(25 + 2 * (int)(bits & 7)) * 0x1p-5f;
    return f32_to_f16((negative ? -factor : factor) * stream->unit);
}

/* The scale of a row of numbers in FP8, with which none of them is too large: that of the largest
 * value there may be, times one of 16, 17, .. 31 over 16. */
HASH_FN float synthetic_f8_scale(const synthetic_stream *stream, uint64_t row)
{
    const uint64_t bits = synthetic_word(stream, ~row);
    return stream->unit * (65535.0f / 448.0f) * ((float)(16 + (bits & 15)) * 0x1p-4f);
}

HASH_FN void synthetic_put16(uint8_t *out, uint16_t value)
{
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
}

/* Words first, first + 1, .. of the stream as n bytes, little-endian; `set` is or-ed to each word.
 */
HASH_FN void synthetic_put_words(const synthetic_stream *stream, uint64_t first, int n,
                                 uint64_t set, uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        uint64_t word = synthetic_word(stream, first + (uint64_t)i) | set;
        memcpy(out + 8 * i, &word, sizeof word);
    }
}

/* {d, int8 q[32]}: the odd numbers from -127 to 127, which have mean 0. */
HASH_FN void synthetic_q8_0(const synthetic_stream *stream, uint64_t block, uint8_t out[34])
{
    uint64_t counter = block * 5;
    synthetic_put16(out, synthetic_scale(stream, synthetic_word(stream, counter), 0));
    synthetic_put_words(stream, counter + 1, 4, 0x0101010101010101u, out + 2);
}

/* The formats of 32 elements in 4 or 5 bits: {d, [m,] [qh,] q}. `middle` is the level that the
 * minimum puts at 0, or 0 for a format without one. */
HASH_FN void synthetic_nibbles(const synthetic_stream *stream, uint64_t block, float middle,
                               int fifth_bits, uint8_t *out)
{
    uint64_t counter = block * 3, bits = synthetic_word(stream, counter);
    uint16_t d = synthetic_scale(stream, bits, middle == 0.0f && (bits & 8));
    synthetic_put16(out, d);
    out += 2;
    if (middle != 0.0f) {
        synthetic_put16(out, f32_to_f16(f16_to_f32(d) * -middle)); /* exact before it is rounded */
        out += 2;
    }
    if (fifth_bits) {
        synthetic_put16(out, (uint16_t)(bits >> 32));
        synthetic_put16(out + 2, (uint16_t)(bits >> 48));
        out += 4;
    }
    synthetic_put_words(stream, counter + 1, 2, 0, out);
}

/* {d, dmin, 6-bit scales and minima, q[128]}: dmin = 7.5 d and each minimum is its group's scale or
 * one beside it. */
HASH_FN void synthetic_q4_k(const synthetic_stream *stream, uint64_t block, uint8_t out[144])
{
    uint64_t counter = block * 17, bits = synthetic_word(stream, counter);
    uint16_t d = synthetic_scale(stream, bits, 0);
    synthetic_put16(out, d);
    synthetic_put16(out + 2, f32_to_f16(f16_to_f32(d) * 7.5f));
    uint8_t scale[8], minimum[8];
    for (int i = 0; i < 8; i++) {
        scale[i] = (uint8_t)(32 + (bits >> (8 + 5 * i) & 31));
        minimum[i] = (uint8_t)(scale[i] ^ (bits >> (48 + i) & 1));
    }
    for (int i = 0; i < 4; i++) {
        out[4 + i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
        out[8 + i] = (uint8_t)(minimum[i] | minimum[i + 4] >> 4 << 6);
        out[12 + i] = (uint8_t)((scale[i + 4] & 15) | (minimum[i + 4] & 15) << 4);
    }
    synthetic_put_words(stream, counter + 1, 16, 0, out + 16);
}

/* {ql[128], qh[64], int8 scales[16], d}: scales of either sign, 32 to 63. */
HASH_FN void synthetic_q6_k(const synthetic_stream *stream, uint64_t block, uint8_t out[210])
{
    uint64_t counter = block * 26;
    synthetic_put_words(stream, counter + 2, 24, 0, out);
    for (int i = 0; i < 2; i++) {
        uint64_t bits = synthetic_word(stream, counter + (uint64_t)i);
        for (int j = 0; j < 8; j++, bits >>= 6) {
            int scale = 32 + (int)(bits & 31);
            out[192 + 8 * i + j] = (uint8_t)(bits & 32 ? -scale : scale);
        }
        if (i == 0) synthetic_put16(out + 208, synthetic_scale(stream, bits, 0));
    }
}

/* {d, scales_h, scales_l[4], q[128]}: scales of 16 to 31, stored plus 32. */
HASH_FN void synthetic_iq4_xs(const synthetic_stream *stream, uint64_t block, uint8_t out[136])
{
    uint64_t counter = block * 17, bits = synthetic_word(stream, counter);
    synthetic_put16(out, synthetic_scale(stream, bits, (bits & 8) != 0));
    synthetic_put16(out + 2, 0xffff);
    for (int i = 0; i < 4; i++)
        out[4 + i] = (uint8_t)(bits >> (8 + 8 * i));
    synthetic_put_words(stream, counter + 1, 16, 0, out + 8);
}

/* {e, q[16]}: powers of two around the unit, with its square as their mean square. */
HASH_FN void synthetic_mxfp4(const synthetic_stream *stream, uint64_t block, uint8_t out[17])
{
    uint64_t counter = block * 3, bits = synthetic_word(stream, counter);
    uint32_t unit;
    memcpy(&unit, &stream->unit, sizeof unit);
    const uint64_t mantissa = (unit & 0x7fffff) | 0x800000; /* m = mantissa / 2^23 */
    const uint64_t share = (mantissa * mantissa - ((uint64_t)1 << 46)) >> 22; /* m^2 - 1, 24 bits */
    out[0] = (uint8_t)((unit >> 23) + 1 + ((bits >> 40) * 3 < share));
    synthetic_put_words(stream, counter + 1, 2, 0, out + 1);
}

/* Block `block` (element index / elements in a block) of a quantised type. Types that cannot be
 * made leave `out` alone. */
HASH_FN void synthetic_block(const synthetic_stream *stream, dtype type, uint64_t block,
                             uint8_t *out)
{
    switch (type) {
    case DTYPE_Q8_0:
        synthetic_q8_0(stream, block, out);
        break;
    case DTYPE_Q4_0:
    case DTYPE_IQ4_NL:
        synthetic_nibbles(stream, block, 0.0f, 0, out);
        break;
    case DTYPE_Q4_1:
        synthetic_nibbles(stream, block, 7.5f, 0, out);
        break;
    case DTYPE_Q5_0:
        synthetic_nibbles(stream, block, 0.0f, 1, out);
        break;
    case DTYPE_Q5_1:
        synthetic_nibbles(stream, block, 15.5f, 1, out);
        break;
    case DTYPE_Q4_K:
        synthetic_q4_k(stream, block, out);
        break;
    case DTYPE_Q6_K:
        synthetic_q6_k(stream, block, out);
        break;
    case DTYPE_IQ4_XS:
        synthetic_iq4_xs(stream, block, out);
        break;
    case DTYPE_MXFP4:
        synthetic_mxfp4(stream, block, out);
        break;
    default:
        break;
    }
}
