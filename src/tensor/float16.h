/* The two 16-bit float formats, one value at a time, in integer arithmetic where rounding matters.
 *
 *   F16   s eeeee mmmmmmmmmm    IEEE 754 binary16: bias 15, subnormals in steps of 2^-24
 *   BF16  s eeeeeeee mmmmmmm    the upper half of an IEEE 754 binary32
 *
 * Narrowing rounds to nearest, ties to even; what is too large becomes infinity; a NaN keeps its
 * sign and the upper bits of its payload and becomes quiet. The results are the bits that x86's
 * F16C and AVX512-BF16 (without its flushing of subnormals) and NVIDIA's conversions give for
 * numbers, so that a fast variant can be compared with these bit for bit. Compiles as C and as CUDA
 * C.
 */
#pragma once

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

FLOAT16_FN float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) {
        /* Zero or subnormal: the mantissa counts steps of 2^-24; exact, and normal in F32. */
        return float_from_bits(sign | float_bits((float)mantissa * 0x1p-24f));
    }
    if (exponent == 0x1f) {
        uint32_t quiet = mantissa ? 0x00400000u : 0;
        return float_from_bits(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    return float_from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

FLOAT16_FN uint16_t f32_to_f16(float value)
{
    uint32_t bits = float_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520, half way to 2^16 */
    if (magnitude < 0x38800000u) {
        /* Below 2^-14: one unit in the last place of a float in [0.5, 1) is 2^-24, so the addition
         * itself rounds to a subnormal's step. A carry into 2^-14 gives the right exponent. */
        return (uint16_t)(sign | (float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((magnitude - ((127u - 15u) << 23)) >> 13));
}

FLOAT16_FN float bf16_to_f32(uint16_t value)
{
    return float_from_bits((uint32_t)value << 16);
}

FLOAT16_FN uint16_t f32_to_bf16(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
