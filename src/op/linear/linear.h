/* Call layout of linear: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { LINEAR_X, LINEAR_WEIGHT, LINEAR_BIAS, LINEAR_RESIDUAL, LINEAR_OUT };

op_kernel linear_reference;

/* linear_variants.c */
extern const op_variant linear_variants[];
