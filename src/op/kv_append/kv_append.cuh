/* kv_append on the GPU: an element a thread. */
#ifndef QUIPU_OP_KV_APPEND_CUH
#define QUIPU_OP_KV_APPEND_CUH

#include "op/device.cuh"
#include "op/kv_append/kv_append.h"

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

DEVICE_FN void kv_append_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &qo = call.tensors[KV_APPEND_QO_INDPTR];
    const int32_t *positions = (const int32_t *)call.tensors[KV_APPEND_POSITIONS].data;
    const int32_t *kv_indptr = (const int32_t *)call.tensors[KV_APPEND_KV_INDPTR].data;
    const int32_t *pages = (const int32_t *)call.tensors[KV_APPEND_KV_INDICES].data;
    const tensor &k_cache = call.tensors[KV_APPEND_K_CACHE];
    int page_size = (int)k_cache.shape[1];
    for (int64_t t = begin; t < end; t++) {
        int64_t b = device_sequence((const int32_t *)qo.data, qo.shape[0] - 1, t);
        int64_t page = pages[kv_indptr[b] + positions[t] / page_size];
        int64_t slot = positions[t] % page_size;
        kv_append_token(call.tensors[KV_APPEND_K], t, k_cache, page, slot);
        kv_append_token(call.tensors[KV_APPEND_V], t, call.tensors[KV_APPEND_V_CACHE], page, slot);
    }
}

#endif
