/* Call layout of scale: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum { SCALE_X, SCALE_OUT };
enum { SCALE_FACTOR, SCALE_SOFT_CAP };

op_kernel scale_reference;
