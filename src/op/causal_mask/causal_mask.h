/* Call layout of causal_mask: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { CAUSAL_MASK_Q_LENS, CAUSAL_MASK_HISTORY, CAUSAL_MASK_MASK };

op_kernel causal_mask_reference;
