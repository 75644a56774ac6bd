/* How fast memory is read at the moment: plain reads beside what is timed.
 *
 * Processors share their memory's bandwidth with other programs, and virtual machines with other
 * machines, whose use changes within seconds. Passes that read weights are compared at one rate.
 */
#pragma once

#include "base/threads.h"
#include "schedule/cost.h"

typedef struct read_speed {
    struct hardware *all, *one; /* NULL where memory is short */
} read_speed;

/* By all threads of a pool, and by the one of another. read_speed_close() it, also after a failure.
 */
qp_status read_speed_open(read_speed *out, thread_pool *all, thread_pool *one, qp_error *error);
void read_speed_close(read_speed *speed);

/* The rates of some 10 ms each; 0 where memory is short, and of what is not asked for. */
cost_rates read_speed_now(const read_speed *speed, bool all, bool one);

/* The means of the rates before and after a pass: those beside it. */
cost_rates read_speed_between(cost_rates before, cost_rates after);
