/* add_rms_norm on the GPU: a block a row, read once where the threads can keep its sums. */
#ifndef QUIPU_OP_ADD_RMS_NORM_CUH
#define QUIPU_OP_ADD_RMS_NORM_CUH

#include "op/add_rms_norm/add_rms_norm.h"
#include "op/rms_norm/rms_norm.cuh"

DEVICE_FN float4 add_rms_norm_sums(const tensor &x, const tensor &residual, int64_t row, int64_t i)
{
    float4 v = device_load4(x.type, device_row(x, row), i, x.shape[1]);
    float4 kept = device_load4(residual.type, device_row(residual, row), i, x.shape[1]);
    return make_float4(v.x + kept.x, v.y + kept.y, v.z + kept.z, v.w + kept.w);
}

DEVICE_FN void add_rms_norm_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ float cells[MAX_WARPS];
    const tensor &x = call.tensors[ADD_RMS_NORM_X];
    const tensor &residual = call.tensors[ADD_RMS_NORM_RESIDUAL];
    const tensor &w = call.tensors[ADD_RMS_NORM_WEIGHT];
    const int64_t n = x.shape[1], own = 4 * threadIdx.x, step = 4 * blockDim.x;
    const float eps = (float)call.params[ADD_RMS_NORM_EPS];
    for (int64_t row = begin; row < end; row++) {
        auto leave = [&](int64_t i, float4 sums, float scale, float4 f) {
            device_store4(residual.type, device_row(residual, row), i, n, sums);
            device_store4(x.type, device_row(x, row), i, n, rms_norm_apply(sums, scale, f));
        };
        float4 v[RMS_NORM_KEPT], f[RMS_NORM_KEPT];
        float squares = 0;
#pragma unroll
        for (int j = 0; j < RMS_NORM_KEPT; j++) {
            int64_t i = own + j * step;
            if (i < n) v[j] = add_rms_norm_sums(x, residual, row, i);
            if (i < n) f[j] = device_load4(w.type, w.data, i, n);
        }
#pragma unroll
        for (int j = 0; j < RMS_NORM_KEPT; j++)
            if (own + j * step < n) squares = rms_norm_add_squares(squares, v[j]);
        for (int64_t i = own + RMS_NORM_KEPT * step; i < n; i += step)
            squares = rms_norm_add_squares(squares, add_rms_norm_sums(x, residual, row, i));
        float scale = rms_norm_scale_of(squares, n, eps, cells);
#pragma unroll
        for (int j = 0; j < RMS_NORM_KEPT; j++)
            if (own + j * step < n) leave(own + j * step, v[j], scale, f[j]);
        for (int64_t i = own + RMS_NORM_KEPT * step; i < n; i += step)
            leave(i, add_rms_norm_sums(x, residual, row, i), scale,
                  device_load4(w.type, w.data, i, n));
    }
}

#endif
