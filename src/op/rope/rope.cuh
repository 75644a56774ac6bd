/* rope on the GPU: four neighbouring pairs a thread, or one. */
#ifndef QUIPU_OP_ROPE_CUH
#define QUIPU_OP_ROPE_CUH

#include "op/device.cuh"
#include "op/rope/rope.h"

/* Turns a pair. */
DEVICE_FN void rope_pair(float *a, float *b, float cosine, float sine)
{
    float x = *a, y = *b;
    *a = x * cosine - y * sine;
    *b = y * cosine + x * sine;
}

/* Turns elements a and b of a head. */
DEVICE_FN void rope_turn(dtype type, void *head, int64_t a, int64_t b, float cosine, float sine)
{
    float x = device_load(type, head, a), y = device_load(type, head, b);
    rope_pair(&x, &y, cosine, sine);
    device_store(type, head, a, x);
    device_store(type, head, b, y);
}

/* Turns four neighbouring pairs of a head's two halves. */
DEVICE_FN void rope_turn4(dtype type, void *head, int64_t i, int half, float4 cosines, float4 sines)
{
    float4 a = device_load4(type, head, i, 2 * half);
    float4 b = device_load4(type, head, i + half, 2 * half);
    rope_pair(&a.x, &b.x, cosines.x, sines.x);
    rope_pair(&a.y, &b.y, cosines.y, sines.y);
    rope_pair(&a.z, &b.z, cosines.z, sines.z);
    rope_pair(&a.w, &b.w, cosines.w, sines.w);
    device_store4(type, head, i, 2 * half, a);
    device_store4(type, head, i + half, 2 * half, b);
}

/* A token's heads of q, then those of k. */
DEVICE_FN void rope_token(const op_call &call, int64_t t, const float *cosines, int half)
{
    const tensor &q = call.tensors[ROPE_Q], &k = call.tensors[ROPE_K];
    const bool interleaved = call.params[ROPE_INTERLEAVED] != 0;
    const int each = !interleaved && half % 4 == 0 ? 4 : 1, items = half / each;
    const int n_q = (int)q.shape[1], n = (n_q + (int)k.shape[1]) * items;
    for (int item = threadIdx.x; item < n; item += blockDim.x) {
        int head = item / items, pair = (item - head * items) * each;
        const tensor &x = head < n_q ? q : k;
        char *row = device_row2(x, t, head < n_q ? head : head - n_q);
        if (each == 4)
            rope_turn4(x.type, row, pair, half, device_load4(DTYPE_F32, cosines, pair, half),
                       device_load4(DTYPE_F32, cosines + half, pair, half));
        else
            rope_turn(x.type, row, interleaved ? 2 * pair : pair,
                      interleaved ? 2 * pair + 1 : pair + half, cosines[pair],
                      cosines[half + pair]);
    }
}

DEVICE_FN void rope_block(const op_call &call, int64_t begin, int64_t end)
{
    const int32_t *positions = (const int32_t *)call.tensors[ROPE_POSITIONS].data;
    const tensor &table = call.tensors[ROPE_COS_SIN];
    for (int64_t t = begin; t < end; t++)
        rope_token(call, t, (const float *)device_row(table, positions[t]),
                   (int)(table.shape[1] / 2));
}

#endif
