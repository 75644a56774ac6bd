/* Half precision in integer arithmetic: IEEE binary16 and bfloat16, exact in both directions.
 *
 * Rounding is to nearest, ties to even; NaN stays NaN (quiet), infinities and denormals are kept.
 */
#ifndef QUIPU_TENSOR_FLOAT16_H
#define QUIPU_TENSOR_FLOAT16_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define FLOAT16_FN __host__ __device__ static inline
#else
#define FLOAT16_FN static inline
#endif

FLOAT16_FN uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FLOAT16_FN float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FLOAT16_FN float bf16_to_f32(uint16_t half)
{
    return float_from_bits((uint32_t)half << 16);
}

FLOAT16_FN uint16_t f32_to_bf16(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

FLOAT16_FN float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fff) << 13; /* exponent and fraction in float's place */
    uint32_t exponent = rest & 0x0f800000u;
    if (exponent == 0x0f800000u) /* infinity and NaN */
        return float_from_bits(sign | (rest + (0x70u << 23)) | 0x7f800000u);
    /* Scaling by 2^112 moves the exponent's bias from 15 to 127, denormals included. */
    return float_from_bits(sign | float_bits(float_from_bits(rest) * 0x1p112f));
}

FLOAT16_FN uint16_t f32_to_f16(float value)
{
    uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* rounds past 65504 */
    if (magnitude < 0x38800000u) {
        /* Denormal: adding 0.5 lets the float unit round at the last bit of the half. */
        float shifted = float_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (0x70u << 23)) >> 13);
}

#endif
