/* Vectors as the integer matrix units take them: 32 bits a column, as four signed digits of 8.
 *
 * Columns share a power of two: the 32 or 128 of them that a warp has at once, so that it needs no
 * other warp's. The largest is below 2^30 of its units and each is rounded to one: by less than a
 * float32's own rounding where it is within a factor of 64 of the largest, and by 2^-31 of that
 * otherwise. Digits lie in planes, one a digit, in the order in which lanes feed them to the matrix
 * units; behind the planes the units.
 */
#ifndef QUIPU_VM_MEGA_DIGITS_CUH
#define QUIPU_VM_MEGA_DIGITS_CUH

#include "vm/mega/async.cuh"

enum { DIGITS = 4 };

/* Where in a plane a column is: of 64 columns a lane's 16 lie together, 4 of each half of a block's
 * 32. */
MEGA_FN int digit_place(int column)
{
    return (column & ~63) + (column >> 2 & 3) * 16 + (column >> 5 & 1) * 8 + (column >> 4 & 1) * 4 +
           (column & 3);
}

/* The larger amount, a NaN being larger than all. */
MEGA_FN float largest(float most, float v)
{
    return __uint_as_float(max(__float_as_uint(most), __float_as_uint(fabsf(v))));
}

/* What values up to `most` in a lane are multiplied by; all lanes of the warp call it. A vector
 * with an infinity in it has no unit. */
MEGA_FN float digit_factor(float most, float *unit)
{
    uint32_t exponent = max(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23, 30u);
    *unit = __uint_as_float(exponent == 255 ? 0x7fc00000 : (exponent - 29) << 23);
    return __uint_as_float((283 - exponent) << 23);
}

/* The digits of a value, one a byte from the lowest. */
MEGA_FN uint32_t digits_of(float v, float factor)
{
    return (uint32_t)(__float2int_rn(v * factor) + 0x808080) ^ 0x808080;
}

/* A lane's N neighbouring columns to planes of `pitch` bytes; `units`: one for every 32 columns of
 * the planes, this warp's all alike. */
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

/* Four neighbouring columns; `unit_of`: where the warp's unit goes. */
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

#endif
