/* The 8-bit float format E4M3 ("FP8", OCP 8-bit Floating Point Specification), one value at a time.
 *
 *   F8   s eeee mmm   bias 7, subnormals in steps of 2^-9, largest 448, no infinities, NaN 0x7f,
 * 0xff
 *
 * Narrowing rounds to nearest, ties to even, and saturates: what is too large, infinities too,
 * becomes 448. A NaN becomes 0x7f. These are the bits that NVIDIA's cvt.rn.satfinite.e4m3x2 gives.
 * Every F8 is exact in F16 and BF16. Compiles as C and as CUDA C.
 */
#pragma once

#include "tensor/float16.h"

#define F8_LARGEST 448.0f

FLOAT16_FN float f8_to_f32(uint8_t value)
{
    uint32_t sign = (uint32_t)(value & 0x80u) << 24, exponent = value >> 3 & 15u;
    uint32_t mantissa = value & 7u;
    if (exponent == 0) return float_from_bits(sign | float_bits((float)mantissa * 0x1p-9f));
    if ((value & 0x7fu) == 0x7fu) return float_from_bits(sign | 0x7fc00000u);
    return float_from_bits(sign | (exponent + 127 - 7) << 23 | mantissa << 20);
}

FLOAT16_FN uint8_t f32_to_f8(float value)
{
    uint32_t bits = float_bits(value);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 */
    if (magnitude < 0x3c800000u) {
        /* Below 2^-6: one unit in the last place of a float in [2^14, 2^15) is 2^-9, so the
         * addition itself rounds to a subnormal's step. A carry into 2^-6 gives the right exponent.
         */
        return (uint8_t)(sign | (float_bits(float_from_bits(magnitude) + 0x1p14f) - 0x46800000u));
    }
    magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | ((magnitude - ((127u - 7u) << 23)) >> 20));
}
