/* Call layout of unpad: indices of its tensors. */
#ifndef QUIPU_OP_UNPAD_H
#define QUIPU_OP_UNPAD_H

#include "op/op.h"

enum { UNPAD_X, UNPAD_PADDING_OFFSETS, UNPAD_OUT };

op_kernel unpad_reference;

#endif
