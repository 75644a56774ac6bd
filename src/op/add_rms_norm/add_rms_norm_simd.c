/* add_rms_norm in vectors: the first pass computes the sum, which stays unrounded in scratch, and
 * the sum of its squares; the second pass computes the norm. */
#include "op/add_rms_norm/add_rms_norm.h"

#include "op/rms_norm/sum_squares.inc"
#include "op/simd.h"

SIMD_FN void add_norm_rows(const op_call *call, dtype x_type, dtype residual_type, dtype w_type)
{
    const tensor *x = &call->tensors[ADD_RMS_NORM_X];               /* (n_tokens, hidden_size) */
    const tensor *residual = &call->tensors[ADD_RMS_NORM_RESIDUAL]; /* (n_tokens, hidden_size) */
    const void *w = call->tensors[ADD_RMS_NORM_WEIGHT].data;        /* (hidden_size) */
    float *sum = call->scratch;                                     /* (hidden_size) */
    int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        void *x_row = tensor_row(x, row), *residual_row = tensor_row(residual, row);
        if (residual_type == DTYPE_F32) sum = residual_row;
        for (int64_t i = 0; i < n; i += LANES) {
            vf a = vf_load_n(x_type, x_row, i, n - i);
            vf b = vf_load_n(residual_type, residual_row, i, n - i), s = vf_add(a, b);
            vf_store_n(DTYPE_F32, sum, i, n - i, s);
            if (residual_type != DTYPE_F32) vf_store_n(residual_type, residual_row, i, n - i, s);
        }
        float squares = sum_squares(DTYPE_F32, sum, n);
        vf scale = vf_set1(norm_scale(squares, n, call->params[ADD_RMS_NORM_EPS]));
        for (int64_t i = 0; i < n; i += LANES) {
            vf value = vf_mul(vf_load_n(DTYPE_F32, sum, i, n - i), scale);
            vf_store_n(x_type, x_row, i, n - i, vf_mul(value, vf_load_n(w_type, w, i, n - i)));
        }
    }
}

SIMD_KERNEL(add_rms_norm)(const op_call *call)
{
    dtype x = call->tensors[ADD_RMS_NORM_X].type, w = call->tensors[ADD_RMS_NORM_WEIGHT].type;
    dtype residual = call->tensors[ADD_RMS_NORM_RESIDUAL].type;
    if (x == DTYPE_F32 && w == DTYPE_F32 && residual == DTYPE_F32)
        add_norm_rows(call, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    else
        add_norm_rows(call, x, residual, w);
}
