/* gelu_and_mul on the GPU: one element per thread. */
#pragma once

#include "op/device.cuh"
#include "op/gelu_and_mul/gelu_and_mul.h"

DEVICE_FN float gelu_tanh_of(float x)
{
    float inner = (float)GELU_ROOT * fmaf((float)GELU_CUBE * x * x, x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

DEVICE_FN void gelu_and_mul_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &x = call.tensors[GELU_AND_MUL_X], &out = call.tensors[GELU_AND_MUL_OUT];
    int64_t n = out.shape[1];
    for (int64_t unit = begin + threadIdx.x; unit < end; unit += blockDim.x) {
        const char *in = device_row(x, unit / n);
        float gate = device_load(x.type, in, unit % n), up = device_load(x.type, in, n + unit % n);
        device_store(out.type, device_row(out, unit / n), unit % n, gelu_tanh_of(gate) * up);
    }
}
