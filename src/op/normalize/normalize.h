/* Call layout of normalize: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { NORMALIZE_X, NORMALIZE_OUT };

op_kernel normalize_reference;
