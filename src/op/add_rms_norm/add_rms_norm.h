/* Call layout of add_rms_norm: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { ADD_RMS_NORM_X, ADD_RMS_NORM_RESIDUAL, ADD_RMS_NORM_WEIGHT };
enum { ADD_RMS_NORM_EPS };

op_kernel add_rms_norm_reference;
