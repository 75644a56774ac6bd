/* Call layout of rms_norm: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { RMS_NORM_X, RMS_NORM_WEIGHT, RMS_NORM_OUT };
enum { RMS_NORM_EPS, RMS_NORM_ROUND_FIRST };

op_kernel rms_norm_reference;
