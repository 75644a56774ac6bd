/* Call layout of paged_prefill: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    PAGED_PREFILL_Q,
    PAGED_PREFILL_K_CACHE,
    PAGED_PREFILL_V_CACHE,
    PAGED_PREFILL_QO_INDPTR,
    PAGED_PREFILL_KV_INDPTR,
    PAGED_PREFILL_KV_INDICES,
    PAGED_PREFILL_KV_LAST_PAGE_LEN,
    PAGED_PREFILL_OUT,
    PAGED_PREFILL_LSE,
    PAGED_PREFILL_MASK,
};
enum {
    PAGED_PREFILL_SM_SCALE,
    PAGED_PREFILL_CAUSAL,
    PAGED_PREFILL_WINDOW,
    PAGED_PREFILL_SOFT_CAP,
};

op_kernel paged_prefill_reference;
