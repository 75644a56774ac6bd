/* A data race: threads share the scale of the row, which each should keep to itself. */
#include "norm.h"

#include <sched.h>

static _Atomic float scale;

void rms_norm_kernel(const op_call *call)
{
    for (int64_t row = call->begin; row < call->end; row++) {
        scale = scale_of(call, row);
        for (int i = 0; i < 20; i++)
            sched_yield();
        scale_row(call, row, scale, call->tensors[X].shape[1]);
    }
}
