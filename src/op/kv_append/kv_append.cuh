/* kv_append on the GPU: one element per thread. */
#pragma once

#include "op/device.cuh"
#include "op/kv_append/kv_append.h"

/* Where a token's keys and values go. */
struct kv_place {
    int64_t page, slot;
};

DEVICE_FN kv_place kv_append_place(const int32_t *qo_indptr, int64_t n_sequences,
                                   const int32_t *positions, const int32_t *kv_indptr,
                                   const int32_t *kv_indices, int page_size, int64_t t)
{
    int64_t b = device_sequence(qo_indptr, n_sequences, t);
    int position = positions[t];
    return kv_place{kv_indices[kv_indptr[b] + position / page_size], position % page_size};
}

DEVICE_FN kv_place kv_append_place(const tensor &qo_indptr, const tensor &positions,
                                   const tensor &kv_indptr, const tensor &kv_indices,
                                   int64_t page_size, int64_t t)
{
    return kv_append_place((const int32_t *)qo_indptr.data, qo_indptr.shape[0] - 1,
                           (const int32_t *)positions.data, (const int32_t *)kv_indptr.data,
                           (const int32_t *)kv_indices.data, (int)page_size, t);
}

/* Copies token t's heads into the slot of a page. */
DEVICE_FN void kv_append_token(const tensor &from, int64_t t, const tensor &cache, int64_t page,
                               int64_t slot)
{
    int head_dim = (int)from.shape[2];
    for (int i = threadIdx.x; i < (int)from.shape[1] * head_dim; i += blockDim.x) {
        int head = i / head_dim, column = i % head_dim;
        char *to = device_row2(cache, page, slot) + head * cache.stride[2];
        device_store(cache.type, to, column,
                     device_load(from.type, device_row2(from, t, head), column));
    }
}

/* Where token t of a call goes. */
DEVICE_FN kv_place kv_append_place_of(const op_call &call, int64_t t)
{
    return kv_append_place(call.tensors[KV_APPEND_QO_INDPTR], call.tensors[KV_APPEND_POSITIONS],
                           call.tensors[KV_APPEND_KV_INDPTR], call.tensors[KV_APPEND_KV_INDICES],
                           call.tensors[KV_APPEND_K_CACHE].shape[1], t);
}

DEVICE_FN void kv_append_block(const op_call &call, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        kv_place at = kv_append_place_of(call, t);
        kv_append_token(call.tensors[KV_APPEND_K], t, call.tensors[KV_APPEND_K_CACHE], at.page,
                        at.slot);
        kv_append_token(call.tensors[KV_APPEND_V], t, call.tensors[KV_APPEND_V_CACHE], at.page,
                        at.slot);
    }
}
