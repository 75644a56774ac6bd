/* embedding on the GPU: eight elements per thread. */
#pragma once

#include "op/device.cuh"
#include "op/embedding/embedding.h"
#include "tensor/decode_all.cuh"

DEVICE_FN void embedding_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &table = call.tensors[EMBEDDING_TABLE], &out = call.tensors[EMBEDDING_OUT];
    const int32_t *ids = (const int32_t *)call.tensors[EMBEDDING_IDS].data;
    const device_rows rows = {(char *)out.data, out.stride[0], out.type};
    int64_t n = table.shape[1];
    bool vectors = n % 8 == 0 && device_aligned(out.data, 16) && out.stride[0] % 16 == 0;
    for (int64_t t = begin; t < end; t++) {
        const char *from = device_row(table, ids[t]);
        for (int64_t i = 8 * (int64_t)threadIdx.x; i < n; i += 8 * (int64_t)blockDim.x) {
            float values[8];
            decode8_all_of<DTYPE_COUNT>(table.type, from, i, n, values);
            if (vectors)
                device_store8<true>(rows, t, (int)i, (int)n, values);
            else
                device_store8<false>(rows, t, (int)i, (int)n, values);
        }
    }
}
