/* merge_states on the GPU: a warp a head, the states one after the other. */
#ifndef QUIPU_OP_MERGE_STATES_CUH
#define QUIPU_OP_MERGE_STATES_CUH

#include "op/device.cuh"
#include "op/merge_states/merge_states.h"

DEVICE_FN const float *merge_states_sum(const tensor &s, int64_t t, int64_t head, int64_t state)
{
    return (const float *)(device_row2(s, t, head) + state * s.stride[2]);
}

/* One head of one token, by a warp. */
DEVICE_FN void merge_states_head(const tensor &v, const tensor &s, int64_t t, int64_t head,
                                 dtype type, void *out)
{
    int lane = threadIdx.x % WARP, n_states = (int)v.shape[2];
    float top = -CUDART_INF_F, sum = 0;
    for (int state = 0; state < n_states; state++)
        top = fmaxf(top, *merge_states_sum(s, t, head, state));
    for (int state = 0; state < n_states && top != -CUDART_INF_F; state++)
        sum += exp2f(*merge_states_sum(s, t, head, state) - top);
    for (int64_t column = lane; column < v.shape[3]; column += WARP) {
        float value = 0;
        for (int state = 0; state < n_states && sum != 0; state++) {
            const char *row = device_row2(v, t, head) + state * v.stride[2];
            float weight = exp2f(*merge_states_sum(s, t, head, state) - top);
            if (weight != 0) value = fmaf(weight, device_load(v.type, row, column), value);
        }
        device_store(type, out, column, sum == 0 ? 0 : value / sum);
    }
}

/* Units are heads: of all tokens. */
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

#endif
