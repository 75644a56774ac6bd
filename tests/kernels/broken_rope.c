/* A rope with the two orders of pairs exchanged: it pairs neighbours where halves are requested. */
#include "quipu_kernel.h"

enum { POSITIONS, Q, K, COS_SIN };
enum { INTERLEAVED };

bool rope_accepts(const op_call *call);
void rope_kernel(const op_call *call);

bool rope_accepts(const op_call *call)
{
    return call->tensors[Q].type == DTYPE_F32 && call->tensors[K].type == DTYPE_F32;
}

static void rotate(float *x, const float *cosines, int64_t half, bool interleaved)
{
    const float *sines = cosines + half;
    for (int64_t i = 0; i < half; i++) {
        int64_t first = interleaved ? i : 2 * i, second = interleaved ? i + half : 2 * i + 1;
        float a = x[first], b = x[second];
        x[first] = a * cosines[i] - b * sines[i];
        x[second] = b * cosines[i] + a * sines[i];
    }
}

void rope_kernel(const op_call *call)
{
    const tensor *cos_sin = &call->tensors[COS_SIN];
    const int32_t *positions = call->tensors[POSITIONS].data;
    for (int64_t t = call->begin; t < call->end; t++) {
        const char *row = (const char *)cos_sin->data + positions[t] * cos_sin->stride[0];
        for (int which = Q; which <= K; which++) {
            const tensor *x = &call->tensors[which];
            for (int64_t head = 0; head < x->shape[1]; head++)
                rotate((float *)((char *)x->data + t * x->stride[0] + head * x->stride[1]),
                       (const float *)row, cos_sin->shape[1] / 2, call->params[INTERLEAVED] != 0);
        }
    }
}
