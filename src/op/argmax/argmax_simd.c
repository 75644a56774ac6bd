/* argmax in vectors: finds the maximum of the row, then its first position. */
#include "op/argmax/argmax.h"

#include "op/max_simd.inc"

SIMD_FN int32_t first_largest(dtype type, const void *row, int64_t n)
{
    float largest = largest_of(type, row, n);
    for (int64_t i = 0; largest > -INFINITY && i < n; i += LANES) {
        vf x = vf_first_n(vf_load_n(type, row, i, n - i), n - i, vf_set1(-INFINITY));
        unsigned found = vf_eq_mask(x, vf_set1(largest));
        if (found) return (int32_t)(i + __builtin_ctz(found));
    }
    return 0;
}

SIMD_KERNEL(argmax)(const op_call *call)
{
    const tensor *logits = &call->tensors[ARGMAX_LOGITS]; /* (n_rows, vocab_size) */
    int32_t *ids = call->tensors[ARGMAX_IDS].data;        /* (n_rows) */
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(logits, row);
        if (logits->type == DTYPE_F32)
            ids[row] = first_largest(DTYPE_F32, in, logits->shape[1]);
        else
            ids[row] = first_largest(logits->type, in, logits->shape[1]);
    }
}
