/* Call layout of concat_past_kv: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    CONCAT_PAST_KV_K,
    CONCAT_PAST_KV_V,
    CONCAT_PAST_KV_Q_LENS,
    CONCAT_PAST_KV_HISTORY,
    CONCAT_PAST_KV_K_CACHE,
    CONCAT_PAST_KV_V_CACHE,
    CONCAT_PAST_KV_SLOTS,
};
enum { CONCAT_PAST_KV_LAYER };

op_kernel concat_past_kv_reference;

/* Where the new row `at` (sequence, head, new token) of k goes in a cache; NULL: it is padding. */
void *concat_past_kv_place(const op_call *call, const tensor *cache, const int64_t at[static 3]);
