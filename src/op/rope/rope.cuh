/* rope on the GPU: a pair a thread. */
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

#endif
