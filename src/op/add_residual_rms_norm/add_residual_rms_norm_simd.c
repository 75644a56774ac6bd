/* add_residual_rms_norm in vectors: the sum stays unrounded in scratch until it is normalised. */
#include "op/add_residual_rms_norm/add_residual_rms_norm.h"

#include "op/rms_norm/sum_squares.inc"
#include "op/simd.h"

SIMD_KERNEL(add_residual_rms_norm)(const op_call *call)
{
    const tensor *x = &call->tensors[ADD_RESIDUAL_RMS_NORM_X];       /* (n_tokens, hidden_size) */
    const tensor *bias = &call->tensors[ADD_RESIDUAL_RMS_NORM_BIAS]; /* (hidden_size) */
    const tensor *residual = &call->tensors[ADD_RESIDUAL_RMS_NORM_RESIDUAL]; /* as x */
    const tensor *w = &call->tensors[ADD_RESIDUAL_RMS_NORM_WEIGHT];          /* (hidden_size) */
    const tensor *out = &call->tensors[ADD_RESIDUAL_RMS_NORM_OUT];           /* as x */
    float *sum = call->scratch;                                              /* (hidden_size) */
    int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *kept = tensor_row(residual, row), *to = tensor_row(out, row);
        for (int64_t i = 0; i < n; i += LANES) {
            vf s =
                vf_add(vf_load_n(x->type, in, i, n - i), vf_load_n(residual->type, kept, i, n - i));
            if (bias->rank) s = vf_add(s, vf_load_n(bias->type, bias->data, i, n - i));
            vf_store_n(DTYPE_F32, sum, i, n - i, s);
            vf_store_n(residual->type, kept, i, n - i, s);
        }
        float squares = sum_squares(DTYPE_F32, sum, n);
        vf scale = vf_set1(norm_scale(squares, n, call->params[ADD_RESIDUAL_RMS_NORM_EPS]));
        for (int64_t i = 0; i < n; i += LANES) {
            vf value = vf_mul(vf_load_n(DTYPE_F32, sum, i, n - i), scale);
            vf_store_n(out->type, to, i, n - i,
                       vf_mul(value, vf_load_n(w->type, w->data, i, n - i)));
        }
    }
}
