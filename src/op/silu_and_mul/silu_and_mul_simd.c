/* silu_and_mul in vectors. */
#include "op/silu_and_mul/silu_and_mul.h"

#include "op/row.h"
#include "op/simd.h"

SIMD_FN void gate_rows(const op_call *call, dtype x_type, dtype out_type, bool plain)
{
    const float alpha = (float)call->params[SILU_AND_MUL_ALPHA];
    const float added = (float)call->params[SILU_AND_MUL_ADDED];
    const float limit = (float)silu_and_mul_limit(call);
    const tensor *x = &call->tensors[SILU_AND_MUL_X];     /* (n_tokens, 2 * intermediate_size) */
    const tensor *out = &call->tensors[SILU_AND_MUL_OUT]; /* (n_tokens, intermediate_size) */
    int64_t intermediate_size = out->shape[1];
    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, intermediate_size);
        const void *in = tensor_row(x, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first, left = span.count; left > 0; i += LANES, left -= LANES) {
            vf gate = vf_load_n(x_type, in, i, left);
            vf up = vf_load_n(x_type, in, intermediate_size + i, left);
            if (!plain) {
                gate = vf_min(vf_set1(limit), gate);
                up = vf_min(vf_set1(limit), vf_max(vf_set1(-limit), up));
                up = vf_add(up, vf_set1(added));
            }
            vf power = vf_exp(vf_sub(vf_zero(), plain ? gate : vf_mul(vf_set1(alpha), gate)));
            vf silu = vf_div(gate, vf_add(vf_set1(1), power));
            vf_store_n(out_type, to, i, left, vf_mul(silu, up));
        }
        unit += span.count;
    }
}

SIMD_KERNEL(silu_and_mul)(const op_call *call)
{
    dtype x = call->tensors[SILU_AND_MUL_X].type, out = call->tensors[SILU_AND_MUL_OUT].type;
    const bool plain = silu_and_mul_is_plain(call);
    if (!plain)
        gate_rows(call, x, out, false);
    else if (x == DTYPE_F32 && out == DTYPE_F32)
        gate_rows(call, DTYPE_F32, DTYPE_F32, true);
    else
        gate_rows(call, x, out, true);
}
