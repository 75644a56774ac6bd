/* add on the GPU: one element per thread. */
#pragma once

#include "op/add/add.h"
#include "op/device.cuh"

DEVICE_FN void add_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &a = call.tensors[ADD_A], &b = call.tensors[ADD_B], &out = call.tensors[ADD_OUT];
    int64_t n = out.shape[1];
    for (int64_t unit = begin + threadIdx.x; unit < end; unit += blockDim.x) {
        int64_t row = unit / n, i = unit % n;
        device_store(out.type, device_row(out, row), i,
                     device_load(a.type, device_row(a, row), i) +
                         device_load(b.type, device_row(b, row), i));
    }
}
