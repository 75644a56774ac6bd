/* A plan run as a schedule: the executor's memory and kernels under the CPU machine. */
#ifndef QUIPU_GENERATE_SCHEDULED_H
#define QUIPU_GENERATE_SCHEDULED_H

#include "generate/execute.h"
#include "schedule/schedule.h"
#include "vm/threads.h"

typedef struct scheduled {
    const executor *executor;
    schedule schedule;
    machine_kernel *kernels; /* [schedule.n_nodes] */
    const void **weights;    /* [schedule.n_weights] */
    threads_machine *machine;
} scheduled;

/* Makes the schedule of the plan's steps before `last_step`, a queue for each worker of the
 * executor's pool, verifies it, and a machine for it. The executor outlives the result.
 * scheduled_free() it, also after a failure. */
qp_status scheduled_init(scheduled *scheduled, const executor *executor, const model *model,
                         int last_step, qp_error *error);
void scheduled_free(scheduled *scheduled);

/* One forward pass over the batch. */
qp_status scheduled_run(scheduled *scheduled, const batch *batch, qp_error *error);

#endif
