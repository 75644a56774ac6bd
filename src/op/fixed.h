/* Sums in fixed point: several workers add in any order and get the same bits.
 *
 *           63      53 52                                 32 31                                   0
 *          +----------+------------------------------------+--------------------------------------+
 *          | count    | whole part, in two's complement    | fraction                             |
 *          +----------+------------------------------------+--------------------------------------+
 *
 * The value is the low 53 bits with their sign, times 2^-32: magnitudes below 2^20, and nothing of
 * a float32 above 2^-9 is lost. The top bits belong to the machine: where a reader must see from
 * the sum itself that it is complete, every contribution adds one to the count. Readers of the
 * value ignore the count. One source for C and CUDA C.
 */
#pragma once

#include "op/portable.h"

enum { FIXED_FRACTION = 32, FIXED_COUNT_AT = 53, FIXED_MOST_COUNTED = (1 << (64 - 53)) - 1 };
#define FIXED_ONE 4294967296.0f /* 2^FIXED_FRACTION */

/* The value without the count, times 2^32. */
OP_FN int64_t fixed_value(int64_t sum)
{
    return (int64_t)((uint64_t)sum << (64 - FIXED_COUNT_AT)) >> (64 - FIXED_COUNT_AT);
}

/* The contributions counted in a sum. */
OP_FN uint32_t fixed_count(int64_t sum)
{
    return (uint32_t)(((uint64_t)sum - (uint64_t)fixed_value(sum)) >> FIXED_COUNT_AT);
}

#ifdef __CUDACC__

__device__ static inline float fixed_to_float(int64_t sum)
{
    return (float)fixed_value(sum) * (1 / FIXED_ONE);
}

/* As in C below: the nearest value, without a count. */
__device__ static inline int64_t fixed_from(float v)
{
    const long long most = (1ll << (FIXED_COUNT_AT - 1)) - 1;
    return isnan(v) ? 0 : max(-most, min(most, __float2ll_rn(v * FIXED_ONE)));
}

/* Adds to a sum to which others may add at the same time. */
__device__ static inline void fixed_add(int64_t *sum, int64_t contribution)
{
    atomicAdd((unsigned long long *)sum, (unsigned long long)contribution);
}

/* A contribution that is counted. */
__device__ static inline int64_t fixed_part(float v)
{
    return __float2ll_rn(v * FIXED_ONE) + ((int64_t)1 << FIXED_COUNT_AT);
}

#else

#include "tensor/tensor.h"

#include <stdbool.h>

/* The nearest value, ties to even, without a count; values that are too large become the largest,
 * and NaN becomes 0. */
int64_t fixed_from(double v);

static inline double fixed_to_double(int64_t sum)
{
    return (double)fixed_value(sum) * 0x1p-32;
}

/* Adds to a sum to which others may add at the same time. */
static inline void fixed_add(int64_t *sum, int64_t contribution)
{
    __atomic_fetch_add(sum, contribution, __ATOMIC_RELAXED);
}

/* A row of sums as numbers. */
void fixed_load(const int64_t *row, int64_t n, double *out);
void fixed_load_f32(const int64_t *row, int64_t n, float *out);

/* Sums of usual magnitudes, with or without counts, for test calls. */
void fixed_fill(const tensor *view, bool counted, uint64_t seed);

#endif
