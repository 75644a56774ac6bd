/* Call layout of unpad: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { UNPAD_X, UNPAD_PADDING_OFFSETS, UNPAD_OUT };

op_kernel unpad_reference;
