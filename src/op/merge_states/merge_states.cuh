/* merge_states on the GPU: one warp per head. A lane has the weight of a state, or of every 32nd;
 * the states' outputs are added one after another. */
#pragma once

#include "op/device.cuh"
#include "op/merge_states/merge_states.h"

/* The log-sum-exp of the lane's state; -inf: it has none. */
DEVICE_FN float merge_states_sum(const tensor &s, int64_t t, int64_t head, int64_t state)
{
    if (state >= s.shape[2]) return -CUDART_INF_F;
    return *(const float *)(device_row2(s, t, head) + state * s.stride[2]);
}

/* One head of one token, by a warp. */
DEVICE_FN void merge_states_head(const tensor &v, const tensor &s, int64_t t, int64_t head,
                                 dtype type, void *out)
{
    int lane = threadIdx.x % WARP, n_states = (int)v.shape[2];
    float top = -CUDART_INF_F, sum = 0;
    for (int state = lane; state < n_states; state += WARP)
        top = fmaxf(top, merge_states_sum(s, t, head, state));
    for (int step = WARP / 2; step > 0; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, step));
    if (top == -CUDART_INF_F) top = 0; /* all are empty */
    for (int state = lane; state < n_states; state += WARP)
        sum += exp2f(merge_states_sum(s, t, head, state) - top);
    sum = warp_sum(sum);
    for (int64_t first = 0; first < v.shape[3]; first += WARP) {
        int64_t column = first + lane;
        float value = 0;
        for (int state = 0; state < n_states; state += WARP) {
            float weight = exp2f(merge_states_sum(s, t, head, state + lane) - top);
            int count = min((int)WARP, n_states - state);
#pragma unroll 8
            for (int i = 0; i < count; i++) {
                const char *row = device_row2(v, t, head) + (state + i) * v.stride[2];
                float of_state = __shfl_sync(ALL_LANES, weight, i);
                float part = column < v.shape[3] ? device_load(v.type, row, column) : 0;
                if (of_state != 0) value = fmaf(of_state, part, value);
            }
        }
        if (column < v.shape[3]) device_store(type, out, column, sum == 0 ? 0 : value / sum);
    }
}

/* Units are heads, of all tokens. */
DEVICE_FN void merge_states_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &out = call.tensors[MERGE_STATES_OUT];
    int64_t n_tokens = out.shape[0], heads = end - begin;
    for (int64_t i = threadIdx.x / WARP; i < heads * n_tokens; i += blockDim.x / WARP) {
        int64_t t = i / heads, head = begin + i % heads;
        merge_states_head(call.tensors[MERGE_STATES_V], call.tensors[MERGE_STATES_S], t, head,
                          out.type, device_row2(out, t, head));
    }
}
