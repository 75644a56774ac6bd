/* Nothing wrong: the yardstick for the broken ones, which are made of the same parts. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    for (int64_t row = call->begin; row < call->end; row++)
        scale_row(call, row, scale_of(call, row), call->tensors[X].shape[1]);
}
