/* A plan run as a schedule: the executor's memory and kernels under the CPU machine. */
#ifndef QUIPU_VM_SCHEDULED_H
#define QUIPU_VM_SCHEDULED_H

#include "vm/execute.h"
#include "schedule/schedule.h"
#include "vm/parts.h"
#include "vm/serial.h"
#include "vm/threads.h"

typedef struct scheduled {
    const executor *executor;
    schedule schedule;
    bound_kernel *kernels; /* [schedule.n_nodes] */
    bound_schedule setup;  /* of all these, for any machine */
    threads_machine *machine;
    serial_machine *serial; /* runs in its place where it is not NULL */
} scheduled;

/* Makes a schedule with a queue for each worker of the executor's pool, whatever the options (NULL:
 * the usual) say, verifies it, and makes a machine for it. The executor outlives the result.
 * scheduled_free() it, also after a failure. */
qp_status scheduled_init(scheduled *scheduled, const executor *executor,
                         const schedule_options *options, qp_error *error);
void scheduled_free(scheduled *scheduled);

/* From now on instructions run one at a time. */
qp_status scheduled_make_serial(scheduled *scheduled, qp_error *error);

/* What is recorded of a pass; all may be NULL. */
typedef struct scheduled_record {
    instruction_timing *timings; /* [workers][longest]: by the CPU machine */
    parts *parts;                /* by the serial machine */
} scheduled_record;

/* One forward pass over the batch. */
qp_status scheduled_run(scheduled *scheduled, const batch *batch, scheduled_record record,
                        qp_error *error);

#endif
