/* What every machine is given to run a schedule: memory, and a kernel for every node. */
#ifndef QUIPU_VM_MACHINE_H
#define QUIPU_VM_MACHINE_H

#include "schedule/schedule.h"

/* How a node's instructions are run; chosen once, since it depends on types and weights alone. */
typedef struct machine_kernel {
    op_kernel *kernel;
    const void *packed;       /* the variant's own form of the weights, or NULL */
    size_t packed_unit_bytes; /* of it for each unit */
} machine_kernel;

typedef struct machine_setup {
    const schedule *schedule;
    schedule_memory memory;
    const machine_kernel *kernels; /* [schedule->n_nodes] */
    void *scratch;                 /* of all workers, one after the other */
    size_t scratch_bytes;          /* of one worker, at least what any kernel wants */
} machine_setup;

/* Runs one instruction, with the scratch of one worker. */
static inline void machine_execute(const machine_setup *setup, const instruction *in,
                                   const int64_t *sizes, void *scratch)
{
    op_call call;
    if (!schedule_bind(setup->schedule, in, &setup->memory, sizes, &call)) return;
    const machine_kernel *chosen = &setup->kernels[in->node];
    call.packed = chosen->packed;
    call.scratch = scratch;
    chosen->kernel(&call);
}

#endif
