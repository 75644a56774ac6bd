/* Call layout of silu_and_mul: indices of its tensors. */
#ifndef QUIPU_OP_SILU_AND_MUL_H
#define QUIPU_OP_SILU_AND_MUL_H

#include "op/op.h"

enum { SILU_AND_MUL_X, SILU_AND_MUL_OUT };

op_kernel silu_and_mul_reference;

#endif
