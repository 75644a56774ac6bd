/* Call layout of normalize: indices of its tensors. */
#ifndef QUIPU_OP_NORMALIZE_H
#define QUIPU_OP_NORMALIZE_H

#include "op/op.h"

enum { NORMALIZE_X, NORMALIZE_OUT };

op_kernel normalize_reference;

#endif
