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
    machine_setup setup;     /* of all these, for any machine */
    threads_machine *machine;
} scheduled;

/* Makes a schedule with a queue for each worker of the executor's pool, whatever the options (NULL:
 * the usual) say, verifies it, and makes a machine for it. The executor outlives the result.
 * scheduled_free() it, also after a failure. */
qp_status scheduled_init(scheduled *scheduled, const executor *executor, const model *model,
                         const schedule_options *options, qp_error *error);
void scheduled_free(scheduled *scheduled);

/* One forward pass over the batch. `timings`: [workers][longest], or NULL. */
qp_status scheduled_run(scheduled *scheduled, const batch *batch, instruction_timing *timings,
                        qp_error *error);

#endif
