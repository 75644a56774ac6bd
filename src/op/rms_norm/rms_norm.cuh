/* rms_norm on the GPU: a block a row, four neighbours a thread. */
#ifndef QUIPU_OP_RMS_NORM_CUH
#define QUIPU_OP_RMS_NORM_CUH

#include "op/device.cuh"
#include "op/fixed.h"
#include "op/rms_norm/rms_norm.h"

enum { RMS_NORM_KEPT = 4 }; /* times four elements that a thread has of a row, at most */

/* Elements [i, i + 4) of a row of n, zeros behind it; I64: in fixed point. */
DEVICE_FN float4 rms_norm_load(dtype type, const void *row, int64_t i, int64_t n)
{
    if (type != DTYPE_I64) return device_load4(type, row, i, n);
    float v[4];
    for (int j = 0; j < 4; j++)
        v[j] = i + j < n ? fixed_to_float(((const int64_t *)row)[i + j]) : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

DEVICE_FN float rms_norm_add_squares(float sum, float4 v)
{
    return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
}

DEVICE_FN float4 rms_norm_apply(float4 v, float scale, float4 f)
{
    return make_float4(v.x * scale * f.x, v.y * scale * f.y, v.z * scale * f.z, v.w * scale * f.w);
}

/* From the threads' sums of squares, in every thread. */
DEVICE_FN float rms_norm_scale_of(float squares, int64_t n, float eps, float *cells)
{
    return 1.0f / sqrtf(block_sum(squares, cells) / (float)n + eps);
}

/* 1 / sqrt(mean of squares + eps) of a row, in every thread. */
DEVICE_FN float rms_norm_scale(dtype type, const void *row, int64_t n, float eps, float *cells)
{
    float sum = 0;
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x)
        sum = rms_norm_add_squares(sum, rms_norm_load(type, row, i, n));
    return rms_norm_scale_of(sum, n, eps, cells);
}

/* `narrowed` (n_tokens, hidden_size), if not NULL, gets the output rounded to BF16 too. A row is
 * read once where the threads can keep it, its weights with it. */
DEVICE_FN void rms_norm_block(const op_call &call, int64_t begin, int64_t end,
                              uint16_t *narrowed = nullptr)
{
    __shared__ float cells[MAX_WARPS];
    const tensor &x = call.tensors[RMS_NORM_X], &w = call.tensors[RMS_NORM_WEIGHT];
    const tensor &out = call.tensors[RMS_NORM_OUT];
    const int64_t n = x.shape[1], own = 4 * threadIdx.x, step = 4 * blockDim.x;
    const float eps = (float)call.params[RMS_NORM_EPS];
    for (int64_t row = begin; row < end; row++) {
        const char *in = device_row(x, row);
        char *to = device_row(out, row);
        auto leave = [&](int64_t i, float4 y) {
            device_store4(out.type, to, i, n, y);
            if (narrowed) device_narrow(narrowed + row * n + i, y);
        };
        if (n > RMS_NORM_KEPT * step) {
            float scale = rms_norm_scale(x.type, in, n, eps, cells);
            for (int64_t i = own; i < n; i += step)
                leave(i, rms_norm_apply(rms_norm_load(x.type, in, i, n), scale,
                                        device_load4(w.type, w.data, i, n)));
            continue;
        }
        float4 v[RMS_NORM_KEPT], f[RMS_NORM_KEPT];
        float squares = 0;
#pragma unroll
        for (int j = 0; j < RMS_NORM_KEPT; j++) {
            int64_t i = own + j * step;
            if (i < n) v[j] = rms_norm_load(x.type, in, i, n);
            if (i < n) f[j] = device_load4(w.type, w.data, i, n);
        }
#pragma unroll
        for (int j = 0; j < RMS_NORM_KEPT; j++)
            if (own + j * step < n) squares = rms_norm_add_squares(squares, v[j]);
        float scale = rms_norm_scale_of(squares, n, eps, cells);
#pragma unroll
        for (int j = 0; j < RMS_NORM_KEPT; j++)
            if (own + j * step < n) leave(own + j * step, rms_norm_apply(v[j], scale, f[j]));
    }
}

#endif
