/* The CPU machines from inside, for machine_cpu.c, which opens and runs them, and
 * machine_cpu_time.c, which times them.
 */
#pragma once

#include "vm/machine_run.h"

#include "vm/execute.h"
#include "vm/parts.h"
#include "vm/scheduled.h"
#include "vm/serial.h"
#include "vm/threads.h"

/* A schedule, and the machine of one of the two types that runs it. */
typedef struct cpu_queues {
    scheduled scheduled;
    threads_machine *threads;
    serial_machine *serial;
} cpu_queues;

typedef struct cpu_machine {
    executor own, *executor; /* its own, or that of the machine it was opened over */
    bool owns;
    thread_pool *pool;
    cpu_queues *queues; /* NULL: the program is run node by node */
    schedule nodes;     /* then, for traces: the program without instructions */
    uint64_t order;
    uint32_t part_features;
    parts **parts; /* [n_parts]: run operators in parts: one for `serial`, one per worker for
                      `threads`; NULL: operators run whole */
    int n_parts;
    machine_timing timing; /* receives the parts */
    batch later;           /* the batch of a later pass */
    int ran;               /* passes of the last run */
    uint64_t pass_ns;      /* the time of the last pass */
    uint64_t packing_ns;   /* of packing before passes, in all */
} cpu_machine;

/* ---- machine_cpu_time.c: members of machine_type ------------------------------------------- */

qp_status cpu_time(void *self, const machine_timing *timing, qp_error *error);

/* Of all threads; or of one, for machines that run one instruction or operator at a time. */
qp_status cpu_limits(void *self, machine_profile *out, qp_error *error);
qp_status cpu_limits_of_one(void *self, machine_profile *out, qp_error *error);

/* Ends the running of operators in parts. */
void cpu_free_parts(cpu_machine *machine);
