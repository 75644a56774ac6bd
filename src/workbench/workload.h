/* A workload's tensors in memory, for measurements; checks use small cases instead. */
#pragma once

#include "base/buffer.h"
#include "op/harness/case.h"

typedef struct workload {
    op_case about;
    op_call call;
    buffer memory[OP_MAX_TENSORS];
} workload;

/* Makes the call that a text describes: bound, with its inputs filled. */
qp_status workload_create(const op_info *op, const char *text, uint64_t seed, workload *out,
                          qp_error *error);
void workload_free(workload *workload);

/* Refills those inputs of a call of `op` that change from batch to batch; weights, which a kernel
 * may have packed, stay. */
void workload_refill(const op_info *op, const op_call *call, uint64_t seed);
