/* rms_norm on the GPU: a block a row, four neighbours a thread. */
#ifndef QUIPU_OP_RMS_NORM_CUH
#define QUIPU_OP_RMS_NORM_CUH

#include "op/device.cuh"
#include "op/fixed.h"
#include "op/rms_norm/rms_norm.h"

/* Elements [i, i + 4) of a row of n, zeros behind it; I64: in fixed point. */
DEVICE_FN float4 rms_norm_load(dtype type, const void *row, int64_t i, int64_t n)
{
    const float *floats = (const float *)row + i;
    if (type == DTYPE_F32 && i + 4 <= n && device_aligned(floats, 16))
        return *(const float4 *)floats;
    float v[4];
    for (int j = 0; j < 4; j++) {
        if (i + j >= n)
            v[j] = 0;
        else if (type == DTYPE_I64)
            v[j] = fixed_to_float(((const int64_t *)row)[i + j]);
        else
            v[j] = device_load(type, row, i + j);
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

DEVICE_FN void rms_norm_store(dtype type, void *row, int64_t i, int64_t n, float4 value)
{
    float *floats = (float *)row + i;
    if (type == DTYPE_F32 && i + 4 <= n && device_aligned(floats, 16)) {
        *(float4 *)floats = value;
        return;
    }
    const float v[4] = {value.x, value.y, value.z, value.w};
    for (int j = 0; j < 4; j++)
        if (i + j < n) device_store(type, row, i + j, v[j]);
}

/* 1 / sqrt(mean of squares + eps) of a row, in every thread. */
DEVICE_FN float rms_norm_scale(dtype type, const void *row, int64_t n, float eps, float *cells)
{
    float sum = 0;
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
        float4 v = rms_norm_load(type, row, i, n);
        sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    return 1.0f / sqrtf(block_sum(sum, cells) / (float)n + eps);
}

/* `narrowed` (n_tokens, hidden_size), if not NULL, gets the output rounded to BF16 too. */
DEVICE_FN void rms_norm_block(const op_call &call, int64_t begin, int64_t end,
                              uint16_t *narrowed = nullptr)
{
    __shared__ float cells[MAX_WARPS];
    const tensor &x = call.tensors[RMS_NORM_X], &w = call.tensors[RMS_NORM_WEIGHT];
    const tensor &out = call.tensors[RMS_NORM_OUT];
    int64_t n = x.shape[1];
    for (int64_t row = begin; row < end; row++) {
        const char *in = device_row(x, row);
        char *to = device_row(out, row);
        float scale = rms_norm_scale(x.type, in, n, (float)call.params[RMS_NORM_EPS], cells);
        for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
            float4 v = rms_norm_load(x.type, in, i, n), f = rms_norm_load(w.type, w.data, i, n);
            float4 y = make_float4(v.x * scale * f.x, v.y * scale * f.y, v.z * scale * f.z,
                                   v.w * scale * f.w);
            rms_norm_store(out.type, to, i, n, y);
            if (narrowed) device_narrow(narrowed + row * n + i, y);
        }
    }
}

#endif
