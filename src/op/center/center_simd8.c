/* center in vectors. */
#include "op/center/center.h"

#include "op/sum_row.inc"

SIMD_FN void center_rows(const op_call *call, dtype x_type, dtype out_type)
{
    const tensor *x = &call->tensors[CENTER_X];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[CENTER_OUT]; /* (n_rows, n_columns) */
    const int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        const vf mean = vf_set1(sum_row(x_type, in, n) / (float)n);
        for (int64_t i = 0; i < n; i += LANES)
            vf_store_n(out_type, tensor_row(out, row), i, n - i,
                       vf_sub(vf_load_n(x_type, in, i, n - i), mean));
    }
}

SIMD_KERNEL(center)(const op_call *call)
{
    const dtype x = call->tensors[CENTER_X].type, out = call->tensors[CENTER_OUT].type;
    if (x == DTYPE_F32 && out == DTYPE_F32)
        center_rows(call, DTYPE_F32, DTYPE_F32);
    else
        center_rows(call, x, out);
}
