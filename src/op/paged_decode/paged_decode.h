/* Call layout of paged_decode: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    PAGED_DECODE_Q,
    PAGED_DECODE_K_CACHE,
    PAGED_DECODE_V_CACHE,
    PAGED_DECODE_KV_INDPTR,
    PAGED_DECODE_KV_INDICES,
    PAGED_DECODE_KV_LAST_PAGE_LEN,
    PAGED_DECODE_OUT,
    PAGED_DECODE_LSE,
};
enum { PAGED_DECODE_SM_SCALE, PAGED_DECODE_WINDOW, PAGED_DECODE_SOFT_CAP };

op_kernel paged_decode_reference;
