/* Call layout of argmax: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { ARGMAX_LOGITS, ARGMAX_IDS };

op_kernel argmax_reference;
