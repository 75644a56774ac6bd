/* Call layout of gelu_and_mul: indices of its tensors, and the constants of its approximation. */
#pragma once

#include "op/op.h"

enum { GELU_AND_MUL_X, GELU_AND_MUL_OUT };

#define GELU_ROOT 0.7978845608028654 /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715

op_kernel gelu_and_mul_reference;
