/* rms_norm on the GPU: a block a row. */
#ifndef QUIPU_OP_RMS_NORM_CUH
#define QUIPU_OP_RMS_NORM_CUH

#include "op/device.cuh"
#include "op/rms_norm/rms_norm.h"

/* 1 / sqrt(mean of squares + eps) of a row, in every thread. */
DEVICE_FN float rms_norm_scale(dtype type, const void *row, int64_t n, float eps, float *cells)
{
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        float value = device_load(type, row, i);
        sum = fmaf(value, value, sum);
    }
    sum = block_sum(sum, cells);
    return 1.0f / sqrtf(sum / (float)n + eps);
}

DEVICE_FN void rms_norm_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ float cells[MAX_WARPS];
    const tensor &x = call.tensors[RMS_NORM_X], &w = call.tensors[RMS_NORM_WEIGHT];
    const tensor &out = call.tensors[RMS_NORM_OUT];
    int64_t n = x.shape[1];
    for (int64_t row = begin; row < end; row++) {
        const char *in = device_row(x, row);
        char *to = device_row(out, row);
        float scale = rms_norm_scale(x.type, in, n, (float)call.params[RMS_NORM_EPS], cells);
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            float value = device_load(x.type, in, i) * scale;
            device_store(out.type, to, i, value * device_load(w.type, w.data, i));
        }
    }
}

#endif
