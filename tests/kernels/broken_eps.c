/* Adds eps to the root instead of the mean square. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    for (int64_t row = call->begin; row < call->end; row++) {
        float scale = 1 / (sqrtf(mean_square(call, row)) + (float)call->params[EPS]);
        scale_row(call, row, scale, call->tensors[X].shape[1]);
    }
}
