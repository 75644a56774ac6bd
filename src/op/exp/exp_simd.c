/* exp in vectors. */
#include "op/exp/exp.h"

#include "op/element.h"
#include "op/simd.h"

#include <float.h>

SIMD_FN void exp_rows(const op_call *call, dtype x_type, dtype out_type)
{
    const tensor *x = &call->tensors[EXP_X];     /* (n_rows, n_columns) */
    const tensor *max = &call->tensors[EXP_MAX]; /* (n_rows) */
    const tensor *out = &call->tensors[EXP_OUT]; /* (n_rows, n_columns) */
    vf scale = vf_set1((float)call->params[EXP_SCALE]);
    int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *to = tensor_row(out, row);
        vf largest = vf_set1((float)element_load(max->type, max->data, row));
        for (int64_t i = 0; i < n; i += LANES) {
            vf value = vf_load_n(x_type, in, i, n - i);
            vf power = vf_exp(vf_mul(vf_sub(value, largest), scale));
            /* Only minus infinity is below -FLT_MAX, even where the maximum is minus infinity. */
            power = vf_where_ge(power, value, vf_set1(-FLT_MAX));
            vf_store_n(out_type, to, i, n - i, power);
        }
    }
}

SIMD_KERNEL(exp)(const op_call *call)
{
    dtype x = call->tensors[EXP_X].type, out = call->tensors[EXP_OUT].type;
    if (x == DTYPE_F32 && out == DTYPE_F32)
        exp_rows(call, DTYPE_F32, DTYPE_F32);
    else
        exp_rows(call, x, out);
}
