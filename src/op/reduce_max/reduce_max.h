/* Call layout of reduce_max: indices of its tensors. */
#ifndef QUIPU_OP_REDUCE_MAX_H
#define QUIPU_OP_REDUCE_MAX_H

#include "op/op.h"

enum { REDUCE_MAX_X, REDUCE_MAX_MAX };

op_kernel reduce_max_reference;

#endif
