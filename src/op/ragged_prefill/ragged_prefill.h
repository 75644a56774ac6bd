/* Call layout of ragged_prefill: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    RAGGED_PREFILL_Q,
    RAGGED_PREFILL_K,
    RAGGED_PREFILL_V,
    RAGGED_PREFILL_QO_INDPTR,
    RAGGED_PREFILL_KV_INDPTR,
    RAGGED_PREFILL_OUT,
    RAGGED_PREFILL_LSE,
    RAGGED_PREFILL_MASK,
};
enum {
    RAGGED_PREFILL_SM_SCALE,
    RAGGED_PREFILL_CAUSAL,
    RAGGED_PREFILL_WINDOW,
    RAGGED_PREFILL_SOFT_CAP,
};

op_kernel ragged_prefill_reference;
