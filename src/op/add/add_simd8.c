/* add in vectors. */
#include "op/add/add.h"

#include "op/row.h"
#include "op/simd.h"

SIMD_FN void add_rows(const op_call *call, dtype a_type, dtype b_type, dtype out_type)
{
    const tensor *a = &call->tensors[ADD_A];     /* (n_rows, n_columns) */
    const tensor *b = &call->tensors[ADD_B];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[ADD_OUT]; /* (n_rows, n_columns) */
    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, out->shape[1]);
        const void *from_a = tensor_row(a, span.row), *from_b = tensor_row(b, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first, left = span.count; left > 0; i += LANES, left -= LANES) {
            vf left_term = vf_load_n(a_type, from_a, i, left);
            vf_store_n(out_type, to, i, left,
                       vf_add(left_term, vf_load_n(b_type, from_b, i, left)));
        }
        unit += span.count;
    }
}

SIMD_KERNEL(add)(const op_call *call)
{
    dtype a = call->tensors[ADD_A].type, b = call->tensors[ADD_B].type;
    dtype out = call->tensors[ADD_OUT].type;
    if (a == DTYPE_F32 && b == DTYPE_F32 && out == DTYPE_F32)
        add_rows(call, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    else
        add_rows(call, a, b, out);
}
