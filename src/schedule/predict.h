/* When each instruction would begin and end if each took its predicted cost. */
#pragma once

#include "schedule/schedule.h"

typedef struct schedule_prediction {
    double *begin, *end;  /* [workers * longest], ns from the beginning of the pass */
    double *busy;         /* [workers]: ns of work */
    double total;         /* ns, to the end of the last instruction */
    double critical_path; /* ns that dependencies would take with a worker for each instruction */
} schedule_prediction;

/* Simulates the queues. A wait ends signal_ns after the last signal that it needs. An instruction
 * takes cost_ns while all workers work, and less while others wait, down to cost_ns times its
 * node's `alone`. The schedule must be sound. prediction_free() the result, also after a failure.
 */
qp_status schedule_predict(const schedule *schedule, schedule_prediction *out, qp_error *error);

/* The same with given durations: ns [workers][longest], which do not depend on other workers. */
qp_status schedule_replay(const schedule *schedule, const double *ns, schedule_prediction *out,
                          qp_error *error);
void prediction_free(schedule_prediction *prediction);

/* Work of the busiest worker over the mean; 1 is perfect. */
double prediction_balance(const schedule *schedule, const schedule_prediction *prediction);
