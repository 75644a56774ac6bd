/* The peak loop of sdot; levels without it have none. */
#include "op/bench/peak.h"

#include "op/simd.h"

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)

enum { CHAINS = 20 };

double peak_integer_neon_dotprod(int64_t n, double *operations)
{
    int32x4_t sum[CHAINS];
    const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = vdupq_n_s32(i);
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 20
        for (int i = 0; i < CHAINS; i++)
            sum[i] = vdotq_s32(sum[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = vaddq_s32(sum[0], sum[i]);
    *operations = (double)n * CHAINS * 16 * 2;
    return sum[0][0];
}

#endif
