/* paged_decode on the GPU in float32: one block per head of a token. */
#pragma once

#include "op/attention/attention.cuh"
#include "op/paged_decode/paged_decode.h"

/* HEAD: limited_head where there are limits. */
template <typename HEAD = device_head>
DEVICE_FN void paged_decode_block(const op_call &call, int64_t begin, int64_t end,
                                  const attention_limits &limits = {})
{
    __shared__ attention_shared shared;
    const tensor &q = call.tensors[PAGED_DECODE_Q], &k = call.tensors[PAGED_DECODE_K_CACHE];
    const int32_t *kv_indptr = (const int32_t *)call.tensors[PAGED_DECODE_KV_INDPTR].data;
    const int32_t *last = (const int32_t *)call.tensors[PAGED_DECODE_KV_LAST_PAGE_LEN].data;
    const int32_t *pages = (const int32_t *)call.tensors[PAGED_DECODE_KV_INDICES].data;
    device_source source = {&k, &call.tensors[PAGED_DECODE_V_CACHE], pages, 0, (int)k.shape[1]};
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t b = unit / q.shape[1];
        HEAD head = {attention_head_of(q, call.tensors[PAGED_DECODE_OUT],
                                       call.tensors[PAGED_DECODE_LSE], k.shape[2],
                                       call.params[PAGED_DECODE_SM_SCALE], unit)};
        head.n_visible = (int)paged_length(kv_indptr, last, b, source.page_size);
        attention_limit(head, limits, nullptr, kv_indptr, last, source.page_size, b, 0, 1,
                        head.n_visible);
        source.pages = pages + kv_indptr[b];
        attention_head_block(source, head, shared);
    }
}
