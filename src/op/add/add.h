/* Call layout of add: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { ADD_A, ADD_B, ADD_OUT };

op_kernel add_reference;
