/* Adds to outputs that were not set to zero. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    const tensor *x = &call->tensors[X], *weight = &call->tensors[WEIGHT];
    const tensor *out = &call->tensors[OUT];
    for (int64_t row = call->begin; row < call->end; row++) {
        float scale = scale_of(call, row);
        for (int64_t i = 0; i < x->shape[1]; i++) {
            float before = load(out, row_at(out, row), i);
            float value = load(x, row_at(x, row), i) * scale * load(weight, weight->data, i);
            store(out, row_at(out, row), i, before + value);
        }
    }
}
