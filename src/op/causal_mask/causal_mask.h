/* Call layout of causal_mask: indices of its tensors. */
#ifndef QUIPU_OP_CAUSAL_MASK_H
#define QUIPU_OP_CAUSAL_MASK_H

#include "op/op.h"

enum { CAUSAL_MASK_Q_LENS, CAUSAL_MASK_HISTORY, CAUSAL_MASK_MASK };

op_kernel causal_mask_reference;

#endif
