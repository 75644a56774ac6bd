/* merge_state on the GPU: one warp per head. */
#ifndef QUIPU_OP_MERGE_STATE_CUH
#define QUIPU_OP_MERGE_STATE_CUH

#include "op/device.cuh"
#include "op/merge_state/merge_state.h"

DEVICE_FN void merge_state_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &v_a = call.tensors[MERGE_STATE_V_A], &v_b = call.tensors[MERGE_STATE_V_B];
    const tensor &s_a = call.tensors[MERGE_STATE_S_A], &s_b = call.tensors[MERGE_STATE_S_B];
    const tensor &v = call.tensors[MERGE_STATE_V], &s = call.tensors[MERGE_STATE_S];
    int lane = threadIdx.x % WARP;
    for (int64_t unit = begin + threadIdx.x / WARP; unit < end; unit += blockDim.x / WARP) {
        int64_t t = unit / s.shape[1], head = unit % s.shape[1];
        float a = ((const float *)device_row(s_a, t))[head];
        float b = ((const float *)device_row(s_b, t))[head];
        float top = fmaxf(a, b), weight_a = 0, weight_b = 0, merged = top;
        if (top != -CUDART_INF_F) {
            weight_a = exp2f(a - top);
            weight_b = exp2f(b - top);
            merged = top + log2f(weight_a + weight_b);
        }
        float sum = weight_a + weight_b;
        for (int64_t i = lane; i < v.shape[2]; i += WARP) {
            float value = weight_a * device_load(v_a.type, device_row2(v_a, t, head), i) +
                          weight_b * device_load(v_b.type, device_row2(v_b, t, head), i);
            device_store(v.type, device_row2(v, t, head), i, sum == 0 ? 0 : value / sum);
        }
        __syncwarp(); /* s may be s_a */
        if (lane == 0) ((float *)device_row(s, t))[head] = merged;
    }
}

#endif
