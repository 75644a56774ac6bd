/* paged_prefill on the GPU in float32: one block per head of a token. Before the previous kernels
 * have ended it looks up what the token sees and prefetches it into L2, because the cache up to the
 * newest positions, and the page table, are older than the pass. */
#pragma once

#include "op/attention/attention.cuh"
#include "op/paged_prefill/paged_prefill.h"

/* Prefetches the first positions seen, one per thread. */
template <typename HEAD>
DEVICE_FN void paged_prefill_ask(const device_source &source, const HEAD &head)
{
    int position = attention_first(head) + threadIdx.x;
    if (position >= head.n_visible) return;
    attention_place at = attention_place_of(source, position);
    for (int i = 0; i < 2; i++)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(
            attention_row_of(i ? *source.v : *source.k, source, at, head.kv_head)));
}

/* HEAD: limited_head where there are limits. */
template <typename HEAD = device_head>
DEVICE_FN void paged_prefill_block(const op_call &call, int64_t begin, int64_t end,
                                   const attention_limits &limits = {})
{
    __shared__ attention_shared shared;
    const tensor &q = call.tensors[PAGED_PREFILL_Q], &k = call.tensors[PAGED_PREFILL_K_CACHE];
    const tensor &qo = call.tensors[PAGED_PREFILL_QO_INDPTR];
    const int32_t *border = (const int32_t *)qo.data;
    const int32_t *kv_indptr = (const int32_t *)call.tensors[PAGED_PREFILL_KV_INDPTR].data;
    const int32_t *last = (const int32_t *)call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN].data;
    const int32_t *pages = (const int32_t *)call.tensors[PAGED_PREFILL_KV_INDICES].data;
    device_source source = {&k, &call.tensors[PAGED_PREFILL_V_CACHE], pages, 0, (int)k.shape[1]};
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t t = unit / q.shape[1], b = device_sequence(border, qo.shape[0] - 1, t);
        int64_t i = t - border[b], qo_length = border[b + 1] - border[b];
        int64_t kv_length = paged_length(kv_indptr, last, b, source.page_size);
        bool causal = call.params[PAGED_PREFILL_CAUSAL] != 0 && !limits.mask;
        HEAD head = {attention_head_of(q, call.tensors[PAGED_PREFILL_OUT],
                                       call.tensors[PAGED_PREFILL_LSE], k.shape[2],
                                       call.params[PAGED_PREFILL_SM_SCALE], unit)};
        head.n_visible = attention_visible_of(causal, i, qo_length, kv_length);
        attention_limit(head, limits, border, kv_indptr, last, source.page_size, b, i, qo_length,
                        kv_length);
        source.pages = pages + kv_indptr[b];
        if (unit == begin) {
            paged_prefill_ask(source, head);
            device_wait_for_last();
        }
        attention_head_block(source, head, shared);
    }
}
