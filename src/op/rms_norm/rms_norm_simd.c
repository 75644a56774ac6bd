/* rms_norm in vectors: the row is read twice, the second time from the cache. */
#include "op/rms_norm/rms_norm.h"

#include "op/rms_norm/sum_squares.inc"
#include "op/simd.h"

SIMD_FN void norm_rows(const op_call *call, dtype x_type, dtype w_type, dtype out_type)
{
    const tensor *x = &call->tensors[RMS_NORM_X];        /* (n_tokens, hidden_size) */
    const void *w = call->tensors[RMS_NORM_WEIGHT].data; /* (hidden_size) */
    const tensor *out = &call->tensors[RMS_NORM_OUT];    /* (n_tokens, hidden_size) */
    int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *to = tensor_row(out, row);
        vf scale = vf_set1(norm_scale(sum_squares(x_type, in, n), n, call->params[RMS_NORM_EPS]));
        for (int64_t i = 0; i < n; i += LANES) {
            vf value = vf_mul(vf_load_n(x_type, in, i, n - i), scale);
            vf_store_n(out_type, to, i, n - i, vf_mul(value, vf_load_n(w_type, w, i, n - i)));
        }
    }
}

SIMD_KERNEL(rms_norm)(const op_call *call)
{
    dtype x = call->tensors[RMS_NORM_X].type, w = call->tensors[RMS_NORM_WEIGHT].type;
    dtype out = call->tensors[RMS_NORM_OUT].type;
    if (x == DTYPE_F32 && w == DTYPE_F32 && out == DTYPE_F32)
        norm_rows(call, DTYPE_F32, DTYPE_F32, DTYPE_F32);
    else
        norm_rows(call, x, w, out);
}
