/* attention_partial on the GPU in float32: one block per part of a query head of a token. */
#ifndef QUIPU_OP_ATTENTION_PARTIAL_CUH
#define QUIPU_OP_ATTENTION_PARTIAL_CUH

#include "op/attention/attention.cuh"
#include "op/attention_partial/attention_partial.h"
#include "op/attention_partial/partition.h"

/* Tensors of attention over a paged cache, as attention_partial and attention_output have them. */
struct attention_paged {
    const tensor &q, &qo_indptr, &kv_indptr, &kv_indices, &kv_last_page_len, &k_cache, &v_cache;
    float scale; /* of scores, in base 2 */
    bool causal;
};

DEVICE_FN attention_paged attention_paged_of(const op_call &call, int first, double sm_scale,
                                             bool causal)
{
    const tensor *t = call.tensors + first;
    float scale = sm_scale != 0 ? (float)sm_scale : 1.0f / sqrtf((float)t->shape[2]);
    return attention_paged{t[0], t[1], t[2], t[3], t[4], t[5], t[6], scale * CUDART_L2E_F, causal};
}

/* Query head h of token t over part `part` of `parts`, by the whole block. */
DEVICE_FN void attention_part_block(const attention_paged &of, int64_t t, int64_t h, int64_t parts,
                                    int64_t part, dtype out_type, char *out, float *lse,
                                    attention_shared &shared)
{
    const int32_t *qo = (const int32_t *)of.qo_indptr.data;
    const int32_t *kv = (const int32_t *)of.kv_indptr.data;
    int64_t page_size = of.k_cache.shape[1], begin, end;
    int64_t b = device_sequence(qo, of.qo_indptr.shape[0] - 1, t);
    int64_t length = paged_length(kv, (const int32_t *)of.kv_last_page_len.data, b, (int)page_size);
    int visible = attention_visible_of(of.causal, t - qo[b], qo[b + 1] - qo[b], length);
    partition_range(visible, parts, page_size, part, &begin, &end);
    const int32_t *pages = (const int32_t *)of.kv_indices.data + kv[b] + begin / page_size;
    device_source source = {&of.k_cache, &of.v_cache, pages, 0, (int)page_size};
    int64_t group = of.q.shape[1] / of.k_cache.shape[2];
    device_head head = {
        device_row2(of.q, t, h), out,     of.q.type, out_type, lse, h / group, (int)(end - begin),
        (int)of.q.shape[2],      of.scale};
    attention_head_block(source, head, shared);
}

/* Member `member` of the KV head's group, in token t, for units [begin, end). */
DEVICE_FN void attention_partial_block(const op_call &call, int64_t t, int64_t member,
                                       int64_t begin, int64_t end, attention_shared &shared)
{
    const tensor &v = call.tensors[ATTENTION_PARTIAL_V], &s = call.tensors[ATTENTION_PARTIAL_S];
    attention_paged of =
        attention_paged_of(call, ATTENTION_PARTIAL_Q, call.params[ATTENTION_PARTIAL_SM_SCALE],
                           call.params[ATTENTION_PARTIAL_CAUSAL] != 0);
    int64_t parts = v.shape[2], group = of.q.shape[1] / of.k_cache.shape[2];
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t part = unit % parts, h = unit / parts * group + member;
        char *out = device_row2(v, t, h) + part * v.stride[2];
        char *lse = s.rank ? device_row2(s, t, h) + part * s.stride[2] : nullptr;
        attention_part_block(of, t, h, parts, part, v.type, out, (float *)lse, shared);
    }
}

#endif
