/* Call layout of merge_state: indices of its tensors. */
#ifndef QUIPU_OP_MERGE_STATE_H
#define QUIPU_OP_MERGE_STATE_H

#include "op/op.h"

enum {
    MERGE_STATE_V_A,
    MERGE_STATE_S_A,
    MERGE_STATE_V_B,
    MERGE_STATE_S_B,
    MERGE_STATE_V,
    MERGE_STATE_S,
};

op_kernel merge_state_reference;

#endif
