/* When each instruction would begin and end if every one took what it is predicted to cost. */
#ifndef QUIPU_SCHEDULE_PREDICT_H
#define QUIPU_SCHEDULE_PREDICT_H

#include "schedule/schedule.h"

typedef struct schedule_prediction {
    double *begin, *end;  /* [workers * longest], ns from the beginning of the pass */
    double *busy;         /* [workers]: ns of work */
    double total;         /* ns, to the end of the last instruction */
    double critical_path; /* ns, what dependencies alone would take with a worker for each */
} schedule_prediction;

/* Runs the queues on paper: a wait is over signal_ns after the last signal that it needs. An
 * instruction takes cost_ns while all workers work, and less while others wait, as far as its
 * node's `alone` says. The schedule must be sound. prediction_free() the result, also after a
 * failure. */
qp_status schedule_predict(const schedule *schedule, schedule_prediction *out, qp_error *error);

/* The same with other durations: ns [workers][longest], whatever the others do. */
qp_status schedule_replay(const schedule *schedule, const double *ns, schedule_prediction *out,
                          qp_error *error);
void prediction_free(schedule_prediction *prediction);

/* Work of the busiest worker over the mean; 1 is perfect. */
double prediction_balance(const schedule *schedule, const schedule_prediction *prediction);

#endif
