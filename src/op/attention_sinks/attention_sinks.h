/* Call layout of attention_sinks: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { ATTENTION_SINKS_V, ATTENTION_SINKS_LSE, ATTENTION_SINKS_SINKS };

op_kernel attention_sinks_reference;
