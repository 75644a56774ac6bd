/* normalize in vectors. */
#include "op/normalize/normalize.h"

#include "op/sum_row.inc"

SIMD_FN void normalize_rows(const op_call *call, dtype x_type, dtype out_type)
{
    const tensor *x = &call->tensors[NORMALIZE_X];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[NORMALIZE_OUT]; /* (n_rows, n_columns) */
    int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *to = tensor_row(out, row);
        float sum = sum_row(x_type, in, n);
        for (int64_t i = 0; i < n; i += LANES) {
            vf value = vf_zero();
            if (sum > 0) value = vf_div(vf_load_n(x_type, in, i, n - i), vf_set1(sum));
            vf_store_n(out_type, to, i, n - i, value);
        }
    }
}

SIMD_KERNEL(normalize)(const op_call *call)
{
    dtype x = call->tensors[NORMALIZE_X].type, out = call->tensors[NORMALIZE_OUT].type;
    if (x == DTYPE_F32 && out == DTYPE_F32)
        normalize_rows(call, DTYPE_F32, DTYPE_F32);
    else
        normalize_rows(call, x, out);
}
