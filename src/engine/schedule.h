/* The schedule that a caller chooses for an engine: qp_schedule_options read and checked. */
#ifndef QUIPU_ENGINE_SCHEDULE_H
#define QUIPU_ENGINE_SCHEDULE_H

#include "quipu.h"
#include "vm/machine.h"

typedef struct engine_schedule {
    schedule_options options; /* what the caller decides; the rest is zero */
    char *file;               /* a copy of the path; NULL: the options decide */
} engine_schedule;

/* Reads the caller's options; NULL are the defaults. engine_schedule_free() the result, also after
 * a failure. */
qp_status engine_schedule_read(const qp_schedule_options *given, engine_schedule *out,
                               qp_error *error);
void engine_schedule_free(engine_schedule *schedule);

/* QP_INVALID where the choice has no effect on a machine of this type, or the forward pass does not
 * have it: `fuse` is for few tokens. */
qp_status engine_schedule_check(const engine_schedule *schedule, const machine_type *type,
                                bool fuse, qp_error *error);

/* The number of workers of the schedule in the file; 0: there is no file. */
qp_status engine_schedule_workers(const engine_schedule *schedule, int *workers, qp_error *error);

/* The options with what the program decides. */
schedule_options engine_schedule_options(const engine_schedule *schedule, const program *program);

#endif
