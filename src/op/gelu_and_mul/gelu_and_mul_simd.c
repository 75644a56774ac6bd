/* gelu_and_mul in vectors. */
#include "op/gelu_and_mul/gelu_and_mul.h"

#include "op/row.h"
#include "op/simd.h"

SIMD_FN vf gelu(vf x)
{
    const vf root = vf_set1((float)GELU_ROOT), half = vf_mul(vf_set1(0.5f), x);
    vf inner = vf_fma(vf_mul(vf_set1((float)GELU_CUBE), vf_mul(x, x)), x, x);
    return vf_mul(half, vf_add(vf_set1(1), vf_tanh(vf_mul(root, inner))));
}

SIMD_FN void gate_rows(const op_call *call, dtype x_type, dtype out_type)
{
    const tensor *x = &call->tensors[GELU_AND_MUL_X];     /* (n_tokens, 2 * intermediate_size) */
    const tensor *out = &call->tensors[GELU_AND_MUL_OUT]; /* (n_tokens, intermediate_size) */
    int64_t intermediate_size = out->shape[1];
    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, intermediate_size);
        const void *in = tensor_row(x, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first, left = span.count; left > 0; i += LANES, left -= LANES) {
            vf gate = vf_load_n(x_type, in, i, left);
            vf up = vf_load_n(x_type, in, intermediate_size + i, left);
            vf_store_n(out_type, to, i, left, vf_mul(gelu(gate), up));
        }
        unit += span.count;
    }
}

SIMD_KERNEL(gelu_and_mul)(const op_call *call)
{
    dtype x = call->tensors[GELU_AND_MUL_X].type, out = call->tensors[GELU_AND_MUL_OUT].type;
    if (x == DTYPE_F32 && out == DTYPE_F32)
        gate_rows(call, DTYPE_F32, DTYPE_F32);
    else
        gate_rows(call, x, out);
}
