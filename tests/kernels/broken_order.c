/* Sums in an order that changes from call to call, as atomic additions do: not deterministic. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    static _Atomic int turn;
    const tensor *x = &call->tensors[X];
    for (int64_t row = call->begin; row < call->end; row++) {
        float sum = 0;
        bool backwards = turn++ % 2;
        for (int64_t i = 0; i < x->shape[1]; i++) {
            float value = load(x, row_at(x, row), backwards ? x->shape[1] - 1 - i : i);
            sum += value * value;
        }
        float scale = 1 / sqrtf(sum / (float)x->shape[1] + (float)call->params[EPS]);
        scale_row(call, row, scale, x->shape[1]);
    }
}
