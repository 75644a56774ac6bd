/* reduce_max in vectors. */
#include "op/reduce_max/reduce_max.h"

#include "op/element.h"
#include "op/max_simd.inc"

SIMD_KERNEL(reduce_max)(const op_call *call)
{
    const tensor *x = &call->tensors[REDUCE_MAX_X];     /* (n_rows, n_columns) */
    const tensor *max = &call->tensors[REDUCE_MAX_MAX]; /* (n_rows) */
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        float largest = x->type == DTYPE_F32 ? largest_of(DTYPE_F32, in, x->shape[1])
                                             : largest_of(x->type, in, x->shape[1]);
        element_store(max->type, max->data, row, largest);
    }
}
