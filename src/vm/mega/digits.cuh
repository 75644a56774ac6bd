/* Vectors for the integer tensor cores: a column is a 32-bit integer, as four signed digits of 8
 * bits.
 *
 * The 32 or 128 columns that a warp has together share a unit, a power of two, so that a warp needs
 * no other warp's. The largest column is below 2^30 units and each is rounded to a whole unit. That
 * is finer than float32's own rounding for columns within a factor of 64 of the largest, and 2^-31
 * of the largest for the others. Digits are in planes, one for each digit, in the order in which
 * lanes feed them to the tensor cores; the units follow the planes.
 */
#pragma once

#include "vm/mega/async.cuh"

enum { DIGITS = 4 };

/* Where a column is in a plane: a lane's 16 of 64 columns are contiguous, 4 of each half of a
 * block's 32. */
MEGA_FN int digit_place(int column)
{
    return (column & ~63) + (column >> 2 & 3) * 16 + (column >> 5 & 1) * 8 + (column >> 4 & 1) * 4 +
           (column & 3);
}

/* The larger magnitude; NaN is larger than all. */
MEGA_FN float largest(float most, float v)
{
    return __uint_as_float(max(__float_as_uint(most), __float_as_uint(fabsf(v))));
}

/* The factor for values up to `most` in a lane; all lanes of the warp call it. A vector with an
 * infinity or a NaN has no unit. */
MEGA_FN float digit_factor(float most, float *unit)
{
    uint32_t exponent = max(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23, 30u);
    *unit = __uint_as_float(exponent == 255 ? 0x7fc00000 : (exponent - 29) << 23);
    return __uint_as_float((283 - exponent) << 23);
}

/* The digits of a value, one per byte, the lowest first. */
MEGA_FN uint32_t digits_of(float v, float factor)
{
    return (uint32_t)(__float2int_rn(v * factor) + 0x808080) ^ 0x808080;
}

/* Stores a lane's N neighbouring columns in planes of `pitch` bytes. `units`: one for every 32
 * columns of the planes; those of this warp are equal. */
template <int N>
MEGA_FN void store_digits(char *planes, int pitch, int column, const float *v, float *units)
{
    float most = 0, unit;
#pragma unroll
    for (int i = 0; i < N; i++)
        most = largest(most, v[i]);
    float factor = digit_factor(most, &unit);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t digits = digits_of(v[i], factor);
#pragma unroll
        for (int d = 0; d < DIGITS; d++)
            planes[d * pitch + digit_place(column + i)] = (char)(digits >> 8 * d);
    }
    if (column % 32 == 0) units[column / 32] = unit;
}

/* Stores four neighbouring columns; `unit_of`: where the warp's unit goes. */
MEGA_FN void store_four_digits(char *planes, int pitch, int column, const float *v, float *unit_of)
{
    float most = largest(largest(largest(largest(0, v[0]), v[1]), v[2]), v[3]);
    float unit, factor = digit_factor(most, &unit);
    uint32_t z[4], pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = digits_of(v[i], factor);
    pairs[0] = __byte_perm(z[0], z[1], 0x5140), pairs[1] = __byte_perm(z[2], z[3], 0x5140);
    pairs[2] = __byte_perm(z[0], z[1], 0x7362), pairs[3] = __byte_perm(z[2], z[3], 0x7362);
    char *to = planes + digit_place(column);
#pragma unroll
    for (int d = 0; d < DIGITS; d++)
        *(uint32_t *)(to + d * pitch) =
            __byte_perm(pairs[d & 2], pairs[d | 1], d & 1 ? 0x7632 : 0x5410);
    if ((threadIdx.x & 31) == 0) *unit_of = unit;
}
