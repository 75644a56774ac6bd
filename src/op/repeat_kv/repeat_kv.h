/* Call layout of repeat_kv: indices of its tensors and parameters. */
#pragma once

#include "op/op.h"

enum {
    REPEAT_KV_K_CACHE,
    REPEAT_KV_V_CACHE,
    REPEAT_KV_KV_LENS,
    REPEAT_KV_K,
    REPEAT_KV_V,
    REPEAT_KV_SLOTS,
};
enum { REPEAT_KV_LAYER };

op_kernel repeat_kv_reference;

/* The row of a cache that row `at` (sequence, query head, position) of `out` copies; NULL: it is
 * padding. */
const void *repeat_kv_source(const op_call *call, const tensor *cache, const tensor *out,
                             const int64_t at[static 3]);
