/* route on the GPU: some threads, a warp or a block, for a token.
 *
 * The logits are keys that compare as whole numbers. A thread counts for each of its experts how
 * many have a larger key, or the same and a lower number: that is the expert's place.
 */
#pragma once

#include "op/device.cuh"
#include "op/route/route_device.h"

/* Shared memory for a token. */
struct route_cells {
    float values[ROUTE_MOST];
    uint4 keys[ROUTE_MOST / 4];
    int32_t chosen[ROUTE_MOST];
};

/* A larger key for a larger logit, and the largest for NaN; none is 0. */
DEVICE_FN uint32_t route_key(float logit)
{
    if (isnan(logit)) return 0xffffffffu;
    const uint32_t bits = __float_as_uint(logit + 0.0f); /* -0 becomes 0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* How many of n keys, with zeros up to a multiple of four, come before that of expert i. */
DEVICE_FN int route_place(const uint4 *keys, int n, int i)
{
    const uint32_t own = ((const uint32_t *)keys)[i];
    int place = 0;
#pragma unroll 4
    for (int j = 0; j < n; j += 4) {
        const uint4 four = keys[j / 4];
        place += four.x > own || (four.x == own && j < i);
        place += four.y > own || (four.y == own && j + 1 < i);
        place += four.z > own || (four.z == own && j + 2 < i);
        place += four.w > own || (four.w == own && j + 3 < i);
    }
    return place;
}

template <int THREADS> DEVICE_FN void route_sync(void)
{
    if constexpr (THREADS == WARP)
        __syncwarp();
    else
        __syncthreads();
}

/* All of THREADS threads. FRESH: other blocks of this launch have written the logits. */
template <int THREADS, bool FRESH>
DEVICE_FN void route_token(const route_rows &call, int64_t token, route_cells &cells)
{
    const int thread = (int)threadIdx.x % THREADS, n = call.n_experts, k = call.top_k;
    const char *logits = call.logits.data + token * call.logits.stride;
    int32_t *ids = (int32_t *)(call.ids.data + token * call.ids.stride);
    char *shares = call.shares.data + token * call.shares.stride;
    for (int i = thread; i < (n + 3) / 4 * 4; i += THREADS) {
        if (i < n)
            cells.values[i] = FRESH ? __ldcg((const float *)logits + i)
                                    : device_load((dtype)call.logits.type, logits, i);
        ((uint32_t *)cells.keys)[i] = i < n ? route_key(cells.values[i]) : 0;
    }
    route_sync<THREADS>();
    for (int i = thread; i < n; i += THREADS) {
        const int place = route_place(cells.keys, n, i);
        if (place >= k) continue;
        cells.chosen[place] = i;
        ids[place] = i;
    }
    route_sync<THREADS>();
    if (thread >= WARP || k == 0) return;
    const float most = cells.values[cells.chosen[0]];
    float sum = 0;
    for (int i = thread; i < (call.normalised ? k : n); i += WARP)
        sum += expf(cells.values[call.normalised ? cells.chosen[i] : i] - most);
    sum = warp_sum(sum);
    for (int j = thread; j < k; j += WARP)
        device_store((dtype)call.shares.type, shares, j,
                     expf(cells.values[cells.chosen[j]] - most) / sum);
}
