/* head_norm in vectors: a head is read twice, the second time from the cache. */
#include "op/head_norm/head_norm.h"

#include "op/rms_norm/sum_squares.inc"
#include "op/simd.h"

SIMD_FN void norm_heads(const op_call *call, int which, dtype type, dtype w_type)
{
    const tensor *x = &call->tensors[HEAD_NORM_Q + which];          /* (n_tokens, heads, n) */
    const void *w = call->tensors[HEAD_NORM_Q_WEIGHT + which].data; /* (n) */
    const int64_t n = x->shape[2];
    for (int64_t t = call->begin; t < call->end; t++) {
        for (int64_t head = 0; head < x->shape[1]; head++) {
            void *row = tensor_row2(x, t, head);
            float squares = sum_squares(type, row, n);
            vf scale = vf_set1(norm_scale(squares, n, call->params[HEAD_NORM_EPS]));
            for (int64_t i = 0; i < n; i += LANES) {
                vf value = vf_mul(vf_load_n(type, row, i, n - i), scale);
                vf_store_n(type, row, i, n - i, vf_mul(value, vf_load_n(w_type, w, i, n - i)));
            }
        }
    }
}

SIMD_KERNEL(head_norm)(const op_call *call)
{
    for (int which = 0; which < 2; which++) {
        dtype x = call->tensors[HEAD_NORM_Q + which].type;
        dtype w = call->tensors[HEAD_NORM_Q_WEIGHT + which].type;
        if (x == DTYPE_F32 && w == DTYPE_F32)
            norm_heads(call, which, DTYPE_F32, DTYPE_F32);
        else
            norm_heads(call, which, x, w);
    }
}
