/* scale on the GPU: one element per thread. */
#pragma once

#include "op/device.cuh"
#include "op/scale/scale.h"

DEVICE_FN void scale_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &x = call.tensors[SCALE_X], &out = call.tensors[SCALE_OUT];
    const float factor = (float)call.params[SCALE_FACTOR];
    const float cap = (float)call.params[SCALE_SOFT_CAP];
    int64_t n = out.shape[1];
    for (int64_t unit = begin + threadIdx.x; unit < end; unit += blockDim.x) {
        float value = device_load(x.type, device_row(x, unit / n), unit % n) * factor;
        if (cap > 0) value = cap * tanhf(value / cap);
        device_store(out.type, device_row(out, unit / n), unit % n, value);
    }
}
