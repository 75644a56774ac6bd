/* Call layout of argmax: indices of its tensors. */
#ifndef QUIPU_OP_ARGMAX_H
#define QUIPU_OP_ARGMAX_H

#include "op/op.h"

enum { ARGMAX_LOGITS, ARGMAX_IDS };

op_kernel argmax_reference;

#endif
