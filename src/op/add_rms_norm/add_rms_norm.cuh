/* add_rms_norm on the GPU: a block a row, whose sums are made twice rather than kept. */
#ifndef QUIPU_OP_ADD_RMS_NORM_CUH
#define QUIPU_OP_ADD_RMS_NORM_CUH

#include "op/add_rms_norm/add_rms_norm.h"
#include "op/device.cuh"

DEVICE_FN void add_rms_norm_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ float cells[MAX_WARPS];
    const tensor &x = call.tensors[ADD_RMS_NORM_X];
    const tensor &residual = call.tensors[ADD_RMS_NORM_RESIDUAL];
    const tensor &w = call.tensors[ADD_RMS_NORM_WEIGHT];
    int64_t n = x.shape[1];
    for (int64_t row = begin; row < end; row++) {
        char *in = device_row(x, row), *kept = device_row(residual, row);
        float squares = 0;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            float sum = device_load(x.type, in, i) + device_load(residual.type, kept, i);
            squares = fmaf(sum, sum, squares);
        }
        squares = block_sum(squares, cells);
        float scale = 1.0f / sqrtf(squares / (float)n + (float)call.params[ADD_RMS_NORM_EPS]);
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            float sum = device_load(x.type, in, i) + device_load(residual.type, kept, i);
            device_store(residual.type, kept, i, sum);
            device_store(x.type, in, i, sum * scale * device_load(w.type, w.data, i));
        }
    }
}

#endif
