/* Truncates to BF16 instead of rounding to nearest. */
#include "norm.h"

void rms_norm_kernel(const op_call *call)
{
    const tensor *x = &call->tensors[X], *weight = &call->tensors[WEIGHT];
    const tensor *out = &call->tensors[OUT];
    for (int64_t row = call->begin; row < call->end; row++) {
        float scale = scale_of(call, row);
        if (out->type == DTYPE_F32) {
            scale_row(call, row, scale, x->shape[1]);
            continue;
        }
        for (int64_t i = 0; i < x->shape[1]; i++) {
            float value = load(x, row_at(x, row), i) * scale * load(weight, weight->data, i);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            ((uint16_t *)row_at(out, row))[i] = (uint16_t)(bits >> 16);
        }
    }
}
