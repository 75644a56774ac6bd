/* merge_state on the GPU: a thread has eight neighbours of a head; or a warp has a head, if rows
 * are not aligned. */
#pragma once

#include "op/device.cuh"
#include "op/merge_state/merge_rows.h"
#include "op/merge_state/merge_state.h"

/* The shares of two states in their merged output, and its log-sum-exp. */
struct merge_shares {
    float a, b, sum;
};

DEVICE_FN merge_shares merge_state_shares(float a, float b)
{
    float top = fmaxf(a, b);
    if (top == -CUDART_INF_F) return {0, 0, top};
    float weight_a = exp2f(a - top), weight_b = exp2f(b - top), sum = weight_a + weight_b;
    return {__fdividef(weight_a, sum), __fdividef(weight_b, sum), top + log2f(sum)};
}

/* Two empty states give 0, whatever their outputs are. */
DEVICE_FN float merge_state_value(const merge_shares &shares, float a, float b)
{
    if (shares.sum == -CUDART_INF_F) return 0;
    return fmaf(shares.b, b, __fmul_rn(shares.a, a));
}

DEVICE_FN void merge_state_vectors(const merge_rows &call)
{
    uint32_t eight = call.begin + blockIdx.x * MERGE_THREADS + threadIdx.x;
    uint32_t unit = eight >> call.shift, t = call.inverse ? __umulhi(unit, call.inverse) : unit;
    uint32_t head = unit - t * call.n_heads;
    int at = (int)(eight - (unit << call.shift)) * 8;
    bool there = eight < call.end;
    device_rows a = call.v_a, b = call.v_b, out = call.v;
    device_eight raw_a = {}, raw_b = {};
    float s_a = 0, s_b = 0;
    a.data += head * call.a_head, b.data += head * call.b_head, out.data += head * call.v_head;
    device_wait_for_last();
    if (there) {
        s_a = ((const float *)(call.s_a.data + t * call.s_a.stride))[head];
        s_b = ((const float *)(call.s_b.data + t * call.s_b.stride))[head];
        raw_a = device_fetch8<true>(a, t, at, at + 8);
        raw_b = device_fetch8<true>(b, t, at, at + 8);
    }
    __syncwarp(); /* s may be s_a or s_b, which the lanes of a head have read */
    /* Not earlier, because the next kernel's blocks would take the place of this one's. */
    device_let_next_begin();
    if (!there) return;
    merge_shares shares = merge_state_shares(s_a, s_b);
    float of_a[8], of_b[8];
    device_unpack8(a.type, raw_a, of_a);
    device_unpack8(b.type, raw_b, of_b);
#pragma unroll
    for (int j = 0; j < 8; j++)
        of_a[j] = merge_state_value(shares, of_a[j], of_b[j]);
    device_store8<true>(out, t, at, at + 8, of_a);
    if (at == 0) ((float *)(call.s.data + t * call.s.stride))[head] = shares.sum;
}

DEVICE_FN void merge_state_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &v_a = call.tensors[MERGE_STATE_V_A], &v_b = call.tensors[MERGE_STATE_V_B];
    const tensor &s_a = call.tensors[MERGE_STATE_S_A], &s_b = call.tensors[MERGE_STATE_S_B];
    const tensor &v = call.tensors[MERGE_STATE_V], &s = call.tensors[MERGE_STATE_S];
    int lane = threadIdx.x % WARP;
    for (int64_t unit = begin + threadIdx.x / WARP; unit < end; unit += blockDim.x / WARP) {
        int64_t t = unit / s.shape[1], head = unit % s.shape[1];
        merge_shares shares = merge_state_shares(((const float *)device_row(s_a, t))[head],
                                                 ((const float *)device_row(s_b, t))[head]);
        for (int64_t i = lane; i < v.shape[2]; i += WARP) {
            float a = device_load(v_a.type, device_row2(v_a, t, head), i);
            float b = device_load(v_b.type, device_row2(v_b, t, head), i);
            device_store(v.type, device_row2(v, t, head), i, merge_state_value(shares, a, b));
        }
        __syncwarp(); /* s may be s_a */
        if (lane == 0) ((float *)device_row(s, t))[head] = shares.sum;
    }
}
