/* Windows, caps of the scores and masks on the tensor cores: what the kernels of paged_decode and
 * paged_prefill share. Kernels are templates of a type of limits. With no_limits the functions here
 * are empty, so that plain attention pays nothing.
 */
#pragma once

#include "op/attention/limits.h"
#include "op/attention/paged.cuh"

struct no_limits {
};

/* Scores times this are exponents to base 2. Positive: the sign of a negative factor is applied to
 * the queries. A cap takes the factor of the scores itself. */
__device__ __forceinline__ float limits_scale(const no_limits &, const paged_attention &call)
{
    return fabsf(call.sm_scale) * 1.4426950408889634f;
}
__device__ __forceinline__ float limits_scale(const attention_limits &limits,
                                              const paged_attention &call)
{
    return (limits.cap != 0 ? limits.cap : fabsf(call.sm_scale)) * 1.4426950408889634f;
}

/* What scores are multiplied by before tanh; 0: there is no cap. */
__device__ __forceinline__ float limits_inner(const attention_limits &limits,
                                              const paged_attention &call)
{
    return limits.cap != 0 ? fabsf(call.sm_scale) / limits.cap : 0;
}

/* tanh by the exponential function: its error is a few units of 2^-24. */
__device__ __forceinline__ float tanh_of(float x)
{
    return 1 - __fdividef(2, exp2_fast(x * 2.8853900817779268f) + 1);
}

/* The first position in the window of a token that is followed by `later` others in a sequence of
 * this length. */
__device__ __forceinline__ int limits_first(const no_limits &, int, int)
{
    return 0;
}
__device__ __forceinline__ int limits_first(const attention_limits &limits, int length, int later)
{
    return limits.window > 0 ? max(length - later - limits.window, 0) : 0;
}
