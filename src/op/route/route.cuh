/* route on the GPU: a warp a token.
 *
 * The logits are keys that compare as whole numbers. A lane knows the best of the keys that it
 * looks after; in each round the best of all is taken, and its lane looks for its next best.
 */
#ifndef QUIPU_OP_ROUTE_CUH
#define QUIPU_OP_ROUTE_CUH

#include "op/device.cuh"
#include "op/route/route_device.h"

/* A larger key for a larger logit, the largest for NaN, and 0 for none. */
DEVICE_FN uint32_t route_key(float logit)
{
    if (isnan(logit)) return 0xffffffffu;
    const uint32_t bits = __float_as_uint(logit + 0.0f); /* -0 becomes 0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The first of the lane's largest keys. */
DEVICE_FN uint2 route_best(const uint32_t *keys, int n, int lane)
{
    uint2 best = make_uint2(0, 0xffffffffu);
    for (int i = lane; i < n; i += WARP)
        if (keys[i] > best.x) best = make_uint2(keys[i], (uint32_t)i);
    return best;
}

/* Sorts the top_k experts of the largest keys by falling keys, then by rising number; clears their
 * keys. */
DEVICE_FN void route_choose(uint32_t *keys, int n, int k, int lane, int32_t *ids)
{
    uint2 best = route_best(keys, n, lane);
    for (int j = 0; j < k; j++) {
        const uint32_t most = __reduce_max_sync(ALL_LANES, best.x);
        const uint32_t id = __reduce_min_sync(ALL_LANES, best.x == most ? best.y : 0xffffffffu);
        if (lane == 0) ids[j] = (int32_t)id;
        if (best.y != id) continue;
        keys[id] = 0;
        best = route_best(keys, n, lane);
    }
}

/* A warp; `values` and `keys` are shared memory of n_experts each. FRESH: other blocks of this
 * launch have written the logits. */
template <bool FRESH>
DEVICE_FN void route_token(const route_rows &call, int64_t token, float *values, uint32_t *keys)
{
    const int lane = (int)threadIdx.x % WARP, n = call.n_experts, k = call.top_k;
    const char *logits = call.logits.data + token * call.logits.stride;
    int32_t *ids = (int32_t *)(call.ids.data + token * call.ids.stride);
    char *shares = call.shares.data + token * call.shares.stride;
    for (int i = lane; i < n; i += WARP) {
        values[i] = FRESH ? __ldcg((const float *)logits + i)
                          : device_load((dtype)call.logits.type, logits, i);
        keys[i] = route_key(values[i]);
    }
    __syncwarp();
    route_choose(keys, n, k, lane, ids);
    __syncwarp();
    if (k == 0) return;
    const float most = values[ids[0]];
    float sum = 0;
    for (int i = lane; i < (call.normalised ? k : n); i += WARP)
        sum += expf(values[call.normalised ? ids[i] : i] - most);
    sum = warp_sum(sum);
    for (int j = lane; j < k; j += WARP)
        device_store((dtype)call.shares.type, shares, j, expf(values[ids[j]] - most) / sum);
}

#endif
