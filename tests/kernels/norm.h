/* The correct parts that the broken candidates for rms_norm share. */
#ifndef TESTS_KERNELS_NORM_H
#define TESTS_KERNELS_NORM_H

#include "quipu_kernel.h"

#include <math.h>
#include <string.h>

enum { X, WEIGHT, OUT };
enum { EPS, ROUND_FIRST };

void rms_norm_kernel(const op_call *call);
bool rms_norm_accepts(const op_call *call);

/* F32 and BF16, and no rounding in between. */
bool rms_norm_accepts(const op_call *call)
{
    for (int t = X; t <= OUT; t++) {
        if (call->tensors[t].type != DTYPE_F32 && call->tensors[t].type != DTYPE_BF16) return false;
    }
    return call->params[ROUND_FIRST] == 0;
}

static inline void *row_at(const tensor *view, int64_t row)
{
    return (char *)view->data + row * view->stride[0];
}

static inline float load(const tensor *view, const void *row, int64_t i)
{
    if (view->type == DTYPE_F32) return ((const float *)row)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)row)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void store(const tensor *view, void *row, int64_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (view->type == DTYPE_F32)
        ((float *)row)[i] = value;
    else
        ((uint16_t *)row)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float mean_square(const op_call *call, int64_t row)
{
    const tensor *x = &call->tensors[X];
    float sum = 0;
    for (int64_t i = 0; i < x->shape[1]; i++) {
        float value = load(x, row_at(x, row), i);
        sum += value * value;
    }
    return sum / (float)x->shape[1];
}

static inline float scale_of(const op_call *call, int64_t row)
{
    return 1 / sqrtf(mean_square(call, row) + (float)call->params[EPS]);
}

/* Elements [0, n) of a row of out. */
static inline void scale_row(const op_call *call, int64_t row, float scale, int64_t n)
{
    const tensor *x = &call->tensors[X], *weight = &call->tensors[WEIGHT];
    const tensor *out = &call->tensors[OUT];
    for (int64_t i = 0; i < n; i++)
        store(out, row_at(out, row), i,
              load(x, row_at(x, row), i) * scale * load(weight, weight->data, i));
}

#endif
