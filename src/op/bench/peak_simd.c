/* The peak loop of fused multiply-adds, in vectors: enough sums to hide the latency, which leave
 * registers for the factors. */
#include "op/bench/peak.h"

#include "op/simd.h"

enum { CHAINS = SIMD_REGISTERS == 32 ? 20 : 12 };

double SIMD_NAME(peak_float)(int64_t n, double *operations)
{
    vf sum[CHAINS], a = vf_set1(0.999f), b = vf_set1(0.001f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = vf_set1((float)i);
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 20
        for (int i = 0; i < CHAINS; i++)
            sum[i] = vf_fma(sum[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = vf_add(sum[0], sum[i]);
    *operations = (double)n * CHAINS * LANES * 2;
    return (double)vf_max_of_lanes(sum[0]);
}
