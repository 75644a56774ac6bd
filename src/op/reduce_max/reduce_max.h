/* Call layout of reduce_max: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { REDUCE_MAX_X, REDUCE_MAX_MAX };

op_kernel reduce_max_reference;
