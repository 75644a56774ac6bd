/* Schedules of the same instructions in other queues: what a search for a better one tries. */
#pragma once

#include "schedule/schedule.h"

/* The instructions in these queues: `order` has those of all workers one after the other, of each
 * `lengths` [workers]. The caller verifies the result. schedule_free() it, also after a failure. */
qp_status schedule_arrange(const schedule *from, const instruction *const *order,
                           const int *lengths, schedule *out, qp_error *error);

/* The same instructions in other queues or places. `moves` times one instruction goes to another
 * worker, or changes places with one of another worker, or with the next of its queue; the place is
 * chosen by the predicted times, so that most results are free of deadlocks. The caller verifies
 * the result. *seed is advanced. schedule_free() it, also after a failure. */
qp_status schedule_neighbour(const schedule *from, int moves, uint64_t *seed, schedule *out,
                             qp_error *error);

/* A sound neighbour (schedule_verify()); after a hundred that are not, *out has no counters. */
qp_status schedule_sound_neighbour(const schedule *from, int moves, uint64_t *seed, schedule *out,
                                   qp_error *error);

/* The best of `tries` neighbours by their predicted times, each a few moves from the best so far;
 * the result is a copy of `from` if none is predicted to be quicker. All are sound
 * (schedule_verify()). *ns: its predicted time. schedule_free() it, also after a failure. */
qp_status schedule_climb(const schedule *from, int tries, uint64_t *seed, schedule *out, double *ns,
                         qp_error *error);
