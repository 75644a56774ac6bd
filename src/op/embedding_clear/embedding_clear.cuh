/* embedding_clear on the GPU: eight elements per thread, then zeros. */
#ifndef QUIPU_OP_EMBEDDING_CLEAR_CUH
#define QUIPU_OP_EMBEDDING_CLEAR_CUH

#include "op/device.cuh"
#include "op/embedding_clear/embedding_clear.h"
#include "op/fixed.h"
#include "tensor/decode.cuh"

/* Columns [begin, end) of x for all tokens, and the part of x_next that goes with them. */
DEVICE_FN void embedding_clear_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &table = call.tensors[EMBEDDING_CLEAR_TABLE], &x = call.tensors[EMBEDDING_CLEAR_X];
    const tensor &next = call.tensors[EMBEDDING_CLEAR_X_NEXT];
    const int32_t *ids = (const int32_t *)call.tensors[EMBEDDING_CLEAR_IDS].data;
    int64_t n = table.shape[1], each = next.shape[1] / n, first = begin / 8;
    int64_t groups = (end + 7) / 8 - first;
    for (int64_t i = threadIdx.x; i < groups * x.shape[0]; i += blockDim.x) {
        int64_t t = i / groups, column = (first + i % groups) * 8;
        int64_t *to = (int64_t *)device_row(x, t);
        float values[8];
        decode8_of<DTYPE_COUNT>(table.type, device_row(table, ids[t]), column, n, values);
        for (int j = 0; j < 8; j++)
            if (column + j >= begin && column + j < end) to[column + j] = fixed_from(values[j]);
    }
    int64_t cleared = (end - begin) * each;
    for (int64_t i = threadIdx.x; i < cleared * next.shape[0]; i += blockDim.x)
        ((int64_t *)device_row(next, i / cleared))[begin * each + i % cleared] = 0;
}

#endif
