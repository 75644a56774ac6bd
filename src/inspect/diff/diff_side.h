/* One side of a comparison: a machine, and a copy of its tensors on the host. For diff_run.c. */
#pragma once

#include "vm/machine.h"

typedef struct diff_side {
    machine *of;
    const program *program;
    program_memory memory; /* the copies, as program_bind() takes them; of the cache, only the copy
                              of one layer at a time */
} diff_side;

/* Whether steps may change tensors of the kind. */
bool diff_is_compared(plan_kind kind);

/* Whether the machine holds the tensor after a step. */
bool diff_side_keeps(const diff_side *side, plan_tensor_id id);

/* diff_side_close() it, also after a failure. */
qp_status diff_side_open(diff_side *side, const program *program, machine *of, qp_error *error);
void diff_side_close(diff_side *side);

/* The address of a tensor's copy. */
void *diff_side_copy(const diff_side *side, plan_tensor_id id);

/* Reads the rows that a batch has of a tensor from the machine into the copy, or writes them to the
 * machine from another side's copy, or both. */
qp_status diff_side_fetch(const diff_side *side, plan_tensor_id id, int64_t layer,
                          const program_sizes *sizes, qp_error *error);
qp_status diff_side_write(const diff_side *to, const diff_side *from, plan_tensor_id id,
                          int64_t layer, const program_sizes *sizes, qp_error *error);
qp_status diff_side_hand(const diff_side *from, const diff_side *to, plan_tensor_id id,
                         int64_t layer, const program_sizes *sizes, qp_error *error);

/* Clears the sums in the copy to which a step adds: so they are zero before the step. */
void diff_side_clear_sums(const diff_side *side, int step, const program_sizes *sizes);
