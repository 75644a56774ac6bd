/* A plan as a schedule over an executor's memory and kernels, ready for `serial` or `threads`. */
#ifndef QUIPU_VM_SCHEDULED_H
#define QUIPU_VM_SCHEDULED_H

#include "schedule/schedule.h"
#include "vm/bound.h"
#include "vm/execute.h"

typedef struct scheduled {
    const executor *executor;
    schedule schedule;
    bound_kernel *kernels; /* [schedule.n_nodes] */
    bound_schedule bound;  /* of all these */
} scheduled;

/* Makes a schedule of `workers` queues, no more than the executor's pool has threads, whatever the
 * options (NULL: the usual) say, and verifies it. The executor outlives the result.
 * scheduled_free() it, also after a failure. */
qp_status scheduled_init(scheduled *scheduled, const executor *executor, int workers,
                         const schedule_options *options, qp_error *error);
void scheduled_free(scheduled *scheduled);

#endif
