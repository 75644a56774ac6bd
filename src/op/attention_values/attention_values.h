/* Call layout of attention_values: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { ATTENTION_VALUES_PROBABILITIES, ATTENTION_VALUES_V, ATTENTION_VALUES_OUT };

op_kernel attention_values_reference;
