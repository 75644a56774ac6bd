/* attention_scores in vectors: a query with KEYS keys at a time. */
#include "op/attention_scores/attention_scores.h"

#include "op/element.h"
#include "op/simd.h"

enum { KEYS = 4 };

/* The scores of keys [first, first + count), count <= KEYS. */
SIMD_FN void score_keys(dtype q_type, dtype k_type, const void *query, const char *keys,
                        int64_t stride, int64_t count, int64_t n, float scores[KEYS])
{
    vf sums[KEYS][SUMS];
    for (int key = 0; key < KEYS; key++)
        for (int s = 0; s < SUMS; s++)
            sums[key][s] = vf_zero();
    for (int64_t d = 0; d < n; d += SUMS * LANES) {
        for (int s = 0; s < SUMS; s++) {
            int64_t at = d + s * LANES, left = n - at;
            if (left <= 0) break;
            vf part = vf_load_n(q_type, query, at, left);
            for (int key = 0; key < KEYS; key++) {
                const char *row = keys + (key < count ? key : 0) * stride;
                sums[key][s] = vf_fma(part, vf_load_n(k_type, row, at, left), sums[key][s]);
            }
        }
    }
    for (int key = 0; key < KEYS; key++)
        scores[key] = vf_total(sums[key]);
}

SIMD_FN void score_rows(const op_call *call, dtype q_type, dtype k_type)
{
    const tensor *q = &call->tensors[ATTENTION_SCORES_Q]; /* (bs, n_heads, max_q_len, head_size) */
    const tensor *k = &call->tensors[ATTENTION_SCORES_K]; /* (bs, n_heads, max_kv_len, head_size) */
    const tensor *out = &call->tensors[ATTENTION_SCORES_SCORES]; /* (.., max_q_len, max_kv_len) */
    int64_t n_heads = q->shape[1], q_len = q->shape[2], kv_len = k->shape[2];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t i = unit % q_len, head = unit / q_len % n_heads, b = unit / q_len / n_heads;
        const char *query = (const char *)tensor_row2(q, b, head) + i * q->stride[2];
        const char *keys = tensor_row2(k, b, head);
        char *to = (char *)tensor_row2(out, b, head) + i * out->stride[2];
        for (int64_t j = 0; j < kv_len; j += KEYS) {
            float scores[KEYS];
            int64_t count = kv_len - j < KEYS ? kv_len - j : KEYS;
            score_keys(q_type, k_type, query, keys + j * k->stride[2], k->stride[2], count,
                       q->shape[3], scores);
            for (int64_t key = 0; key < count; key++)
                element_store(out->type, to, j + key, (double)scores[key]);
        }
    }
}

SIMD_KERNEL(attention_scores)(const op_call *call)
{
    dtype q = call->tensors[ATTENTION_SCORES_Q].type, k = call->tensors[ATTENTION_SCORES_K].type;
    if (q == DTYPE_F32 && k == DTYPE_F32)
        score_rows(call, DTYPE_F32, DTYPE_F32);
    else
        score_rows(call, q, k);
}
