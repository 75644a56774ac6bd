/* Call layout of norm_linear: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    NORM_LINEAR_X,
    NORM_LINEAR_ROWS,
    NORM_LINEAR_NORM_WEIGHT,
    NORM_LINEAR_WEIGHT,
    NORM_LINEAR_BIAS,
    NORM_LINEAR_OUT,
};
enum { NORM_LINEAR_EPS };

op_kernel norm_linear_reference;

/* norm_linear_variants.c */
extern const op_variant norm_linear_variants[];
