/* Call layout of add: indices of its tensors. */
#ifndef QUIPU_OP_ADD_H
#define QUIPU_OP_ADD_H

#include "op/op.h"

enum { ADD_A, ADD_B, ADD_OUT };

op_kernel add_reference;

#endif
