/* Computes correctly, but sleeps first. */
#include "norm.h"

#include <unistd.h>

void rms_norm_kernel(const op_call *call)
{
    sleep(1);
    for (int64_t row = call->begin; row < call->end; row++)
        scale_row(call, row, scale_of(call, row), call->tensors[X].shape[1]);
    sleep(3600);
}
