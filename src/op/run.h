/* Runs a whole call: divides its units among the threads of a pool. */
#pragma once

#include "base/threads.h"
#include "op/table.h"

/* Runs `kernel` over all units of the call (call->begin and end are set here). `scratch` holds
 * `scratch_bytes` for each worker of the pool, at least op->scratch_bytes(call); NULL if none. */
void op_run(const op_info *op, op_kernel *kernel, const op_call *call, thread_pool *pool,
            void *scratch, size_t scratch_bytes);
