/* Call layout of all_reduce: indices of its tensors. */
#ifndef QUIPU_OP_ALL_REDUCE_H
#define QUIPU_OP_ALL_REDUCE_H

#include "op/op.h"

enum { ALL_REDUCE_PARTS, ALL_REDUCE_OUT };

op_kernel all_reduce_reference;

#endif
