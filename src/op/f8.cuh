/* Rows in FP8 (E4M3) with a scale for each group of columns, as op/linear/linear_f8.h describes
 * them.
 */
#pragma once

#include "op/device.cuh"

/* The scale that makes the largest magnitude the largest number of F8, and its inverse; 0 and 0
 * where all are zeros, or nearly. */
DEVICE_FN float2 f8_scale(float largest)
{
    const float scale = largest * (1.0f / F8_LARGEST), inverse = 1.0f / scale;
    return isfinite(inverse) ? make_float2(scale, inverse) : make_float2(0, 0);
}

/* Rounded to BF16 first, so that it does not matter whether a kernel in between stored BF16. */
DEVICE_FN float f8_first(float v)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

DEVICE_FN float f8_largest(float4 v)
{
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/* The largest over neighbouring lanes, a power of two of them, which `lanes` has. */
DEVICE_FN float f8_largest_of(unsigned lanes, int n, float largest)
{
    for (int step = n / 2; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(lanes, largest, step));
    return largest;
}

/* Numbers times the inverse of their scale, the first one in the lowest byte. */
DEVICE_FN uint16_t f8_pack2(float a, float b, float inverse)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(pair)
        : "f"(b * inverse), "f"(a * inverse));
    return pair;
}
DEVICE_FN uint32_t f8_pack4(float4 v, float inverse)
{
    return f8_pack2(v.x, v.y, inverse) | (uint32_t)f8_pack2(v.z, v.w, inverse) << 16;
}
