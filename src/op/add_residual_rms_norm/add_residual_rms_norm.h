/* Call layout of add_residual_rms_norm: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    ADD_RESIDUAL_RMS_NORM_X,
    ADD_RESIDUAL_RMS_NORM_BIAS,
    ADD_RESIDUAL_RMS_NORM_RESIDUAL,
    ADD_RESIDUAL_RMS_NORM_WEIGHT,
    ADD_RESIDUAL_RMS_NORM_OUT
};
enum { ADD_RESIDUAL_RMS_NORM_EPS };

op_kernel add_residual_rms_norm_reference;
