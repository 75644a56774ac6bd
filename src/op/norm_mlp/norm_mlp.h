/* Call layout of norm_mlp: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    NORM_MLP_X,
    NORM_MLP_NORM_WEIGHT,
    NORM_MLP_GATE_WEIGHT,
    NORM_MLP_UP_WEIGHT,
    NORM_MLP_DOWN_WEIGHT,
    NORM_MLP_GATE_BIAS,
    NORM_MLP_UP_BIAS,
    NORM_MLP_DOWN_BIAS,
    NORM_MLP_X_OUT,
};
enum { NORM_MLP_EPS };

op_kernel norm_mlp_reference;
