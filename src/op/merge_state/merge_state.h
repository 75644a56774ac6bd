/* Call layout of merge_state: indices of its tensors. */
#pragma once

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

/* Sets the weights of two sums, relative to the larger (both 0 when both are empty), and returns
 * the merged sum; all in base 2. */
double merge_state_weigh(double a, double b, double *weight_a, double *weight_b);
