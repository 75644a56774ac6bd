/* attention_values in vectors: COLUMNS vectors of a row of out stay in registers. */
#include "op/attention_values/attention_values.h"

#include "op/element.h"
#include "op/simd.h"

enum { COLUMNS = 8 };

/* Elements [first, first + COLUMNS * LANES) of a row of out, as far as it goes. */
SIMD_FN void weigh_values(const tensor *p, const tensor *v, const char *weights, const char *values,
                          int64_t first, int64_t n, vf sums[COLUMNS], dtype v_type)
{
    for (int c = 0; c < COLUMNS; c++)
        sums[c] = vf_zero();
    for (int64_t j = 0; j < v->shape[2]; j++) {
        vf weight = vf_set1((float)element_load(p->type, weights, j));
        const char *row = values + j * v->stride[2];
        for (int c = 0; c < COLUMNS && first + c * LANES < n; c++) {
            int64_t at = first + c * LANES;
            sums[c] = vf_fma(weight, vf_load_n(v_type, row, at, n - at), sums[c]);
        }
    }
}

SIMD_FN void weigh_rows(const op_call *call, dtype v_type)
{
    const tensor *p = &call->tensors[ATTENTION_VALUES_PROBABILITIES]; /* (.., max_q_len, kv) */
    const tensor *v = &call->tensors[ATTENTION_VALUES_V];     /* (bs, n_heads, kv, head_size) */
    const tensor *out = &call->tensors[ATTENTION_VALUES_OUT]; /* (.., max_q_len, head_size) */
    int64_t n_heads = out->shape[1], q_len = out->shape[2], n = out->shape[3];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t i = unit % q_len, head = unit / q_len % n_heads, b = unit / q_len / n_heads;
        const char *weights = (const char *)tensor_row2(p, b, head) + i * p->stride[2];
        char *to = (char *)tensor_row2(out, b, head) + i * out->stride[2];
        for (int64_t first = 0; first < n; first += COLUMNS * LANES) {
            vf sums[COLUMNS];
            weigh_values(p, v, weights, tensor_row2(v, b, head), first, n, sums, v_type);
            for (int64_t at = first, c = 0; c < COLUMNS && at < n; at += LANES, c++)
                vf_store_n(out->type, to, at, n - at, sums[c]);
        }
    }
}

SIMD_KERNEL(attention_values)(const op_call *call)
{
    dtype v = call->tensors[ATTENTION_VALUES_V].type;
    if (v == DTYPE_F32)
        weigh_rows(call, DTYPE_F32);
    else
        weigh_rows(call, v);
}
