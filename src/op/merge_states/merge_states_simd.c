/* merge_states in vectors: the weights of a head in float64, its rows in float32. */
#include "op/merge_states/merge_states.h"

#include "op/simd.h"

#include <math.h>

/* Computes each state's weight in the merged output, (n_states); zeros where all are empty. */
static void weigh(const float *sums, int64_t n_states, float *weights)
{
    float top = -INFINITY;
    double total = 0;
    for (int64_t p = 0; p < n_states; p++)
        top = sums[p] < top ? top : sums[p];
    for (int64_t p = 0; p < n_states && top != -INFINITY; p++)
        total += exp2((double)(sums[p] - top));
    for (int64_t p = 0; p < n_states; p++)
        weights[p] = total == 0 ? 0 : (float)(exp2((double)(sums[p] - top)) / total);
}

SIMD_FN void merge_head(dtype v_type, dtype out_type, const char *rows, int64_t stride,
                        const float *weights, int64_t n_states, int64_t n, void *to)
{
    for (int64_t i = 0; i < n; i += LANES) {
        vf sum = vf_zero();
        for (int64_t p = 0; p < n_states; p++) {
            if (weights[p] == 0) continue; /* an empty part */
            vf part = vf_load_n(v_type, rows + p * stride, i, n - i);
            sum = vf_fma(vf_set1(weights[p]), part, sum);
        }
        vf_store_n(out_type, to, i, n - i, sum);
    }
}

SIMD_FN void merge_heads(const op_call *call, dtype v_type, dtype out_type)
{
    const tensor *v = &call->tensors[MERGE_STATES_V]; /* (n_tokens, n_heads, n_states, head_dim) */
    const tensor *s = &call->tensors[MERGE_STATES_S]; /* (n_tokens, n_heads, n_states) */
    const tensor *out = &call->tensors[MERGE_STATES_OUT]; /* (n_tokens, n_heads, head_dim) */
    float *weights = call->scratch;                       /* (n_states) */
    for (int64_t token = 0; token < out->shape[0]; token++) {
        for (int64_t head = call->begin; head < call->end; head++) {
            weigh(tensor_row2(s, token, head), v->shape[2], weights);
            merge_head(v_type, out_type, tensor_row2(v, token, head), v->stride[2], weights,
                       v->shape[2], v->shape[3], tensor_row2(out, token, head));
        }
    }
}

SIMD_KERNEL(merge_states)(const op_call *call)
{
    dtype v = call->tensors[MERGE_STATES_V].type, out = call->tensors[MERGE_STATES_OUT].type;
    if (v == DTYPE_F32 && out == DTYPE_F32)
        merge_heads(call, DTYPE_F32, DTYPE_F32);
    else
        merge_heads(call, v, out);
}
