/* Call layout of center: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { CENTER_X, CENTER_OUT };

op_kernel center_reference;
