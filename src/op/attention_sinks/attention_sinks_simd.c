/* attention_sinks in vectors. */
#include "op/attention_sinks/attention_sinks.h"

#include "op/element.h"
#include "op/simd.h"

#include <math.h>

SIMD_FN void scale_heads(const op_call *call, dtype type)
{
    const tensor *v = &call->tensors[ATTENTION_SINKS_V];         /* (n_tokens, n_heads, head_dim) */
    const tensor *lse = &call->tensors[ATTENTION_SINKS_LSE];     /* (n_tokens, n_heads) */
    const tensor *sinks = &call->tensors[ATTENTION_SINKS_SINKS]; /* (n_heads) */
    const float log2_e = 1.44269504f;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        const int64_t t = unit / lse->shape[1], head = unit % lse->shape[1];
        const float sum = ((const float *)tensor_row(lse, t))[head];
        const float sink = (float)element_load(sinks->type, sinks->data, head) * log2_e;
        const vf kept = vf_set1(1 / (1 + exp2f(sink - sum)));
        void *row = tensor_row2(v, t, head);
        for (int64_t i = 0, left = v->shape[2]; left > 0; i += LANES, left -= LANES)
            vf_store_n(type, row, i, left, vf_mul(vf_load_n(type, row, i, left), kept));
    }
}

SIMD_KERNEL(attention_sinks)(const op_call *call)
{
    const dtype type = call->tensors[ATTENTION_SINKS_V].type;
    if (type == DTYPE_F32)
        scale_heads(call, DTYPE_F32);
    else
        scale_heads(call, type);
}
