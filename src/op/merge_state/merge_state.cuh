/* merge_state on the GPU: a thread has eight elements of a head, or a warp has a head if rows are
 * not aligned. */
#ifndef QUIPU_OP_MERGE_STATE_CUH
#define QUIPU_OP_MERGE_STATE_CUH

#include "op/device.cuh"
#include "op/merge_state/merge_rows.h"
#include "op/merge_state/merge_state.h"

/* The weights of two states, and the merged log-sum-exp. */
struct merge_weights {
    float a, b, sum, merged;
};

DEVICE_FN merge_weights merge_weigh(float a, float b)
{
    float top = fmaxf(a, b);
    merge_weights w = {0, 0, 0, top};
    if (top == -CUDART_INF_F) return w;
    w.a = exp2f(a - top);
    w.b = exp2f(b - top);
    w.sum = w.a + w.b;
    w.merged = top + log2f(w.sum);
    return w;
}

/* Eight elements. The threads of a head are in one warp. */
DEVICE_FN void merge_state_vectors(const merge_rows &call)
{
    uint32_t vector = blockIdx.x * (uint32_t)MERGE_THREADS + threadIdx.x;
    int64_t unit = call.begin + vector / (uint32_t)call.eights;
    int i = (int)(vector % (uint32_t)call.eights) * 8, n = call.eights * 8;
    bool there = unit < call.end;
    if (!there) unit = call.end - 1;
    int64_t t = (uint32_t)unit / (uint32_t)call.n_heads, head = unit - t * call.n_heads;
    device_rows v_a = call.v_a, v_b = call.v_b, v = call.v;
    v_a.data += head * call.a_head, v_b.data += head * call.b_head, v.data += head * call.head;
    device_eight raw_a = device_fetch8<true>(v_a, t, i, n);
    device_eight raw_b = device_fetch8<true>(v_b, t, i, n);
    merge_weights w = merge_weigh(((const float *)(call.s_a.data + t * call.s_a.stride))[head],
                                  ((const float *)(call.s_b.data + t * call.s_b.stride))[head]);
    float a[8], b[8];
    device_unpack8(v_a.type, raw_a, a);
    device_unpack8(v_b.type, raw_b, b);
#pragma unroll
    for (int j = 0; j < 8; j++)
        a[j] = w.sum == 0 ? 0 : __fdividef(w.a * a[j] + w.b * b[j], w.sum);
    __syncwarp(); /* s may be s_a, and v may be v_a */
    if (!there) return;
    device_store8<true>(v, t, i, n, a);
    if (i == 0) ((float *)(call.s.data + t * call.s.stride))[head] = w.merged;
}

DEVICE_FN void merge_state_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &v_a = call.tensors[MERGE_STATE_V_A], &v_b = call.tensors[MERGE_STATE_V_B];
    const tensor &s_a = call.tensors[MERGE_STATE_S_A], &s_b = call.tensors[MERGE_STATE_S_B];
    const tensor &v = call.tensors[MERGE_STATE_V], &s = call.tensors[MERGE_STATE_S];
    int lane = threadIdx.x % WARP;
    for (int64_t unit = begin + threadIdx.x / WARP; unit < end; unit += blockDim.x / WARP) {
        int64_t t = unit / s.shape[1], head = unit % s.shape[1];
        merge_weights w = merge_weigh(((const float *)device_row(s_a, t))[head],
                                      ((const float *)device_row(s_b, t))[head]);
        for (int64_t i = lane; i < v.shape[2]; i += WARP) {
            float value = w.a * device_load(v_a.type, device_row2(v_a, t, head), i) +
                          w.b * device_load(v_b.type, device_row2(v_b, t, head), i);
            device_store(v.type, device_row2(v, t, head), i, w.sum == 0 ? 0 : value / w.sum);
        }
        __syncwarp(); /* s may be s_a */
        if (lane == 0) ((float *)device_row(s, t))[head] = w.merged;
    }
}

#endif
