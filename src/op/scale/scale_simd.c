/* scale in vectors. */
#include "op/scale/scale.h"

#include "op/row.h"
#include "op/simd.h"

SIMD_FN void scale_rows(const op_call *call, dtype x_type, dtype out_type)
{
    const tensor *x = &call->tensors[SCALE_X];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[SCALE_OUT]; /* (n_rows, n_columns) */
    const float bound = (float)call->params[SCALE_SOFT_CAP];
    const vf factor = vf_set1((float)call->params[SCALE_FACTOR]), cap = vf_set1(bound);
    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, out->shape[1]);
        const void *from = tensor_row(x, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first, left = span.count; left > 0; i += LANES, left -= LANES) {
            vf value = vf_mul(vf_load_n(x_type, from, i, left), factor);
            if (bound > 0) value = vf_mul(cap, vf_tanh(vf_div(value, cap)));
            vf_store_n(out_type, to, i, left, value);
        }
        unit += span.count;
    }
}

SIMD_KERNEL(scale)(const op_call *call)
{
    dtype x = call->tensors[SCALE_X].type, out = call->tensors[SCALE_OUT].type;
    if (x == DTYPE_F32 && out == DTYPE_F32)
        scale_rows(call, DTYPE_F32, DTYPE_F32);
    else
        scale_rows(call, x, out);
}
