/* Copies of a call, each in memory of its own, so that calls do not find their tensors in the
 * caches. */
#pragma once

#include "base/buffer.h"
#include "base/threads.h"
#include "op/op.h"

typedef struct call_copies {
    op_call *calls;
    int count;
    buffer memory;
} call_copies;

/* Makes `count` copies; tensors that share memory share it in the copy too. `pack` (may be NULL)
 * adds weights packed for a variant. */
qp_status copies_create(const op_info *op, const op_call *call, const op_variant *variant,
                        int count, thread_pool *pool, call_copies *out, qp_error *error);
void copies_free(call_copies *copies);

/* Bytes that a copy takes. */
size_t copies_bytes(const op_info *op, const op_call *call, const op_variant *variant);

/* Bytes from a view's first element to the end of its last. */
size_t copies_span(const tensor *view);
