/* rope of many tokens: a thread has eight pairs of several heads of a token, and no thread of a
 * block is idle between tokens. */
#pragma once

#include "op/rope/rope.cuh"

/* Heads first, first + step, ... of a token, HEADS of them. */
template <int HEADS>
DEVICE_FN void rope_several(const rope_rows &call, int64_t token, int own, int first, int step)
{
    const float *angles =
        (const float *)(call.table + call.positions[token] * call.table_stride) + own * 8;
    const float4 *sines = (const float4 *)(angles + call.half);
    float4 cosine[2] = {((const float4 *)angles)[0], ((const float4 *)angles)[1]};
    float4 sine[2] = {sines[0], sines[1]};
    int a_at = own * (call.interleaved ? 16 : 8),
        b_at = call.interleaved ? a_at + 8 : a_at + call.half;
    device_wait_for_last();
    device_eight raw_a[HEADS], raw_b[HEADS];
    device_rows head[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int number = first + h * step;
        if (number >= call.n_heads) continue;
        bool of_k = number >= call.n_q_heads;
        head[h] = of_k ? call.k : call.q;
        head[h].data += of_k ? (number - call.n_q_heads) * call.k_head : number * call.q_head;
        raw_a[h] = device_fetch8<true>(head[h], token, a_at, a_at + 8);
        raw_b[h] = device_fetch8<true>(head[h], token, b_at, b_at + 8);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        if (first + h * step >= call.n_heads) continue;
        float a[8], b[8];
        device_unpack8(head[h].type, raw_a[h], a);
        device_unpack8(head[h].type, raw_b[h], b);
        rope_turn8(call.interleaved, a, b, cosine, sine);
        device_store8<true>(head[h], token, a_at, a_at + 8, a);
        device_store8<true>(head[h], token, b_at, b_at + 8, b);
    }
}

template <int HEADS> DEVICE_FN void rope_many(const rope_rows &call, uint32_t n_tokens)
{
    uint32_t per_head = (uint32_t)call.half / 8,
             step = ((uint32_t)call.n_heads + HEADS - 1) / HEADS;
    uint32_t number = blockIdx.x * blockDim.x + threadIdx.x, unit = number / per_head;
    uint32_t token = unit / step;
    if (token >= n_tokens) return;
    rope_several<HEADS>(call, call.begin + token, (int)(number % per_head), (int)(unit % step),
                        (int)step);
}
