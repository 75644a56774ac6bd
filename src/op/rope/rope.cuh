/* rope on the GPU: a thread rotates eight pairs of several heads, or one pair if they are not
 * aligned. */
#pragma once

#include "op/device.cuh"
#include "op/rope/rope.h"

/* Rotates a pair. */
DEVICE_FN void rope_pair(float *a, float *b, float cosine, float sine)
{
    float x = *a, y = *b;
    /* Written out, so that the compiler cannot choose another fma. */
    *a = fmaf(x, cosine, -(y * sine));
    *b = fmaf(y, cosine, x * sine);
}

/* Rotates elements a and b of a head. */
DEVICE_FN void rope_turn(dtype type, void *head, int64_t a, int64_t b, float cosine, float sine)
{
    float x = device_load(type, head, a), y = device_load(type, head, b);
    rope_pair(&x, &y, cosine, sine);
    device_store(type, head, a, x);
    device_store(type, head, b, y);
}

/* Rotates pairs of elements, a's and b's, or neighbours of both. */
DEVICE_FN void rope_turn8(bool interleaved, float (&a)[8], float (&b)[8], const float4 (&cosine)[2],
                          const float4 (&sine)[2])
{
    const float c[8] = {cosine[0].x, cosine[0].y, cosine[0].z, cosine[0].w,
                        cosine[1].x, cosine[1].y, cosine[1].z, cosine[1].w};
    const float s[8] = {sine[0].x, sine[0].y, sine[0].z, sine[0].w,
                        sine[1].x, sine[1].y, sine[1].z, sine[1].w};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (!interleaved)
            rope_pair(&a[j], &b[j], c[j], s[j]);
        else if (j < 4)
            rope_pair(&a[2 * j], &a[2 * j + 1], c[j], s[j]);
        else
            rope_pair(&b[2 * j - 8], &b[2 * j - 7], c[j], s[j]);
    }
}

/* For only rope: rotated elements are stored in place, and nothing else. */
struct rope_in_place {
    DEVICE_METHOD void begin() const {}
    DEVICE_METHOD void turned(int, int, const float (&)[8]) const {}
};

/* One token per block. A thread has eight angles, which it loads before the previous kernel has
 * ended, and rotates HEADS heads by them at a time. `also`: begin() when that kernel has ended, and
 * turned(head of k, its first element, eight elements). */
template <int HEADS, typename ALSO>
DEVICE_FN void rope_vectors(const rope_rows &call, int64_t token, const ALSO &also)
{
    int per_head = call.half / 8, own = (int)threadIdx.x % per_head;
    int step = (int)blockDim.x / per_head;
    const float *angles =
        (const float *)(call.table + call.positions[token] * call.table_stride) + own * 8;
    const float4 *sines = (const float4 *)(angles + call.half);
    float4 cosine[2] = {((const float4 *)angles)[0], ((const float4 *)angles)[1]};
    float4 sine[2] = {sines[0], sines[1]};
    int a_at = own * (call.interleaved ? 16 : 8),
        b_at = call.interleaved ? a_at + 8 : a_at + call.half;
    device_wait_for_last();
    also.begin();
    for (int first = (int)threadIdx.x / per_head; first < call.n_heads; first += step * HEADS) {
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
            if (first + h * step < call.n_q_heads) continue;
            also.turned(first + h * step - call.n_q_heads, a_at, a);
            also.turned(first + h * step - call.n_q_heads, b_at, b);
        }
    }
}

DEVICE_FN void rope_block(const op_call &call, int64_t begin, int64_t end)
{
    const int32_t *positions = (const int32_t *)call.tensors[ROPE_POSITIONS].data;
    const tensor &table = call.tensors[ROPE_COS_SIN];
    int half = (int)(table.shape[1] / 2);
    bool interleaved = call.params[ROPE_INTERLEAVED] != 0;
    for (int64_t t = begin; t < end; t++) {
        const float *cosines = (const float *)device_row(table, positions[t]);
        for (int which = ROPE_Q; which <= ROPE_K; which++) {
            const tensor &x = call.tensors[which];
            for (int i = threadIdx.x; i < (int)x.shape[1] * half; i += blockDim.x) {
                int pair = i % half;
                rope_turn(x.type, device_row2(x, t, i / half), interleaved ? 2 * pair : pair,
                          interleaved ? 2 * pair + 1 : pair + half, cosines[pair],
                          cosines[half + pair]);
            }
        }
    }
}
