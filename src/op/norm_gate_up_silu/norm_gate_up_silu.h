/* Call layout of norm_gate_up_silu: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    NORM_GATE_UP_SILU_X,
    NORM_GATE_UP_SILU_NORM_WEIGHT,
    NORM_GATE_UP_SILU_GATE_WEIGHT,
    NORM_GATE_UP_SILU_UP_WEIGHT,
    NORM_GATE_UP_SILU_GATE_BIAS,
    NORM_GATE_UP_SILU_UP_BIAS,
    NORM_GATE_UP_SILU_OUT,
};
enum { NORM_GATE_UP_SILU_EPS };

op_kernel norm_gate_up_silu_reference;

/* norm_gate_up_silu_variants.c */
extern const op_variant norm_gate_up_silu_variants[];
