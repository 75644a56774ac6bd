/* The schedules of all ranks of a program. */
#pragma once

#include "schedule/schedule.h"

typedef struct schedule_ranks {
    int n;
    program *programs;   /* [n] */
    schedule *schedules; /* [n] */
} schedule_ranks;

/* Makes each rank's schedule with the same options, or reads all from a file (NULL: none), and
 * proves that they fit together (schedule_verify_ranks()). The program is that of any of the ranks,
 * and outlives the result. schedule_ranks_free() it, also after a failure. */
qp_status schedule_ranks_make(const program *program, const schedule_options *options,
                              const char *file, schedule_ranks *out, qp_error *error);
void schedule_ranks_free(schedule_ranks *ranks);
