/* Call layout of kv_append: indices of its tensors. */
#pragma once

#include "op/attention/ragged.h"
#include "op/op.h"

enum {
    KV_APPEND_K,
    KV_APPEND_V,
    KV_APPEND_QO_INDPTR,
    KV_APPEND_POSITIONS,
    KV_APPEND_KV_INDPTR,
    KV_APPEND_KV_INDICES,
    KV_APPEND_KV_LAST_PAGE_LEN,
    KV_APPEND_K_CACHE,
    KV_APPEND_V_CACHE,
};

op_kernel kv_append_reference;

/* The page table of a call. */
page_table kv_append_table(const op_call *call);
