/* Call layout of merge_states: indices of its tensors. */
#ifndef QUIPU_OP_MERGE_STATES_H
#define QUIPU_OP_MERGE_STATES_H

#include "op/op.h"

enum { MERGE_STATES_V, MERGE_STATES_S, MERGE_STATES_OUT };

op_kernel merge_states_reference;

#endif
