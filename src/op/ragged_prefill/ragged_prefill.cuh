/* ragged_prefill on the GPU in float32: one block per head of a token. Keys and values are treated
 * as a cache of pages of one position. */
#pragma once

#include "op/attention/attention.cuh"
#include "op/ragged_prefill/ragged_prefill.h"

/* (n, heads, head_dim) as (n, 1, heads, head_dim) */
DEVICE_FN tensor ragged_as_cache(const tensor &view)
{
    tensor cache = view;
    cache.rank = 4;
    for (int d = 1; d < 3; d++) {
        cache.shape[d + 1] = view.shape[d];
        cache.stride[d + 1] = view.stride[d];
    }
    cache.shape[1] = 1;
    return cache;
}

/* HEAD: limited_head where there are limits. */
template <typename HEAD = device_head>
DEVICE_FN void ragged_prefill_block(const op_call &call, int64_t begin, int64_t end,
                                    const attention_limits &limits = {})
{
    __shared__ attention_shared shared;
    const tensor &q = call.tensors[RAGGED_PREFILL_Q];
    const tensor &qo = call.tensors[RAGGED_PREFILL_QO_INDPTR];
    const int32_t *border = (const int32_t *)qo.data;
    const int32_t *kv_border = (const int32_t *)call.tensors[RAGGED_PREFILL_KV_INDPTR].data;
    tensor k = ragged_as_cache(call.tensors[RAGGED_PREFILL_K]);
    tensor v = ragged_as_cache(call.tensors[RAGGED_PREFILL_V]);
    device_source source = {&k, &v, nullptr, 0, 1};
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t t = unit / q.shape[1], b = device_sequence(border, qo.shape[0] - 1, t);
        int64_t i = t - border[b], qo_length = border[b + 1] - border[b];
        int64_t kv_length = kv_border[b + 1] - kv_border[b];
        bool causal = call.params[RAGGED_PREFILL_CAUSAL] != 0 && !limits.mask;
        HEAD head = {attention_head_of(q, call.tensors[RAGGED_PREFILL_OUT],
                                       call.tensors[RAGGED_PREFILL_LSE], k.shape[2],
                                       call.params[RAGGED_PREFILL_SM_SCALE], unit)};
        head.n_visible = attention_visible_of(causal, i, qo_length, kv_length);
        attention_limit(head, limits, border, kv_border, nullptr, 1, b, i, qo_length, kv_length);
        source.first_page = kv_border[b];
        attention_head_block(source, head, shared);
    }
}
