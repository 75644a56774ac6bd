/* A correct candidate, made of the same parts as the broken ones. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    for (int64_t row = call->begin; row < call->end; row++)
        scale_row(call, row, scale_of(call, row), call->tensors[X].shape[1]);
}
