/* Call layout of merge_states: indices of its tensors. */
#pragma once

#include "op/op.h"

enum { MERGE_STATES_V, MERGE_STATES_S, MERGE_STATES_OUT };

op_kernel merge_states_reference;
