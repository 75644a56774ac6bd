/* merge_state in vectors: the weights of a head in float64, its rows in float32. */
#include "op/merge_state/merge_state.h"

#include "op/simd.h"

SIMD_FN void merge_rows(const op_call *call, dtype a_type, dtype b_type, dtype v_type)
{
    const tensor *v_a = &call->tensors[MERGE_STATE_V_A]; /* (n_tokens, n_heads, head_dim) */
    const tensor *s_a = &call->tensors[MERGE_STATE_S_A]; /* (n_tokens, n_heads) */
    const tensor *v_b = &call->tensors[MERGE_STATE_V_B]; /* (n_tokens, n_heads, head_dim) */
    const tensor *s_b = &call->tensors[MERGE_STATE_S_B]; /* (n_tokens, n_heads) */
    const tensor *v = &call->tensors[MERGE_STATE_V];     /* (n_tokens, n_heads, head_dim) */
    const tensor *s = &call->tensors[MERGE_STATE_S];     /* (n_tokens, n_heads) */
    int64_t n = v->shape[2];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t t = unit / s->shape[1], head = unit % s->shape[1];
        const float *a_row = tensor_row(s_a, t), *b_row = tensor_row(s_b, t);
        double weight_a, weight_b;
        double merged = merge_state_weigh(a_row[head], b_row[head], &weight_a, &weight_b);
        double sum = weight_a + weight_b, share = sum == 0 ? 0 : 1 / sum;
        vf a = vf_set1((float)(weight_a * share)), b = vf_set1((float)(weight_b * share));
        const void *from_a = tensor_row2(v_a, t, head), *from_b = tensor_row2(v_b, t, head);
        void *to = tensor_row2(v, t, head);
        for (int64_t i = 0; i < n; i += LANES) {
            vf part = vf_mul(a, vf_load_n(a_type, from_a, i, n - i));
            part = vf_fma(b, vf_load_n(b_type, from_b, i, n - i), part);
            vf_store_n(v_type, to, i, n - i, sum == 0 ? vf_zero() : part);
        }
        ((float *)tensor_row(s, t))[head] = (float)merged;
    }
}

SIMD_KERNEL(merge_state)(const op_call *call)
{
    dtype a = call->tensors[MERGE_STATE_V_A].type, b = call->tensors[MERGE_STATE_V_B].type;
    dtype v = call->tensors[MERGE_STATE_V].type;
    if (a == DTYPE_F32 && b == DTYPE_F32 && v == DTYPE_F32)
        merge_rows(call, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    else
        merge_rows(call, a, b, v);
}
