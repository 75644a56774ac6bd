/* The machine `threads`: one thread per queue, and counters between them.
 *
 * Every worker reads its queue in order: it waits until the instruction's counters have reached the
 * values it needs, runs the kernel on its slice, and signals. While it waits it runs cells of what
 * it waits for (claims.h). A signal is a release and a wait an acquire, so what was written before
 * the signal is visible after the wait. Counters are never reset: each pass waits for higher
 * values. Between passes the threads sleep in the pool.
 */
#pragma once

#include "base/threads.h"
#include "vm/bound.h"
#include "vm/parts.h"

typedef struct threads_machine threads_machine;

/* The pool has as many workers as the schedule has queues. The pool and everything that `setup`
 * points to outlive the machine. `patience_ns` is how long a wait may last before the pass is given
 * up; 0 means 30 seconds. */
qp_status threads_machine_create(const bound_schedule *setup, thread_pool *pool,
                                 uint64_t patience_ns, threads_machine **out, qp_error *error);
void threads_machine_destroy(threads_machine *machine);

/* From the next pass on only instructions of the program's steps [first, last) run; the others
 * still wait and signal. 0, 0: all run, which is the default. */
void threads_machine_select(threads_machine *machine, int first, int last);

/* From the next pass on instructions run in parts, each worker's by a `parts` of its own
 * ([workers]); NULL: whole, which is the default. */
void threads_machine_in_parts(threads_machine *machine, parts *const *parts);

/* Looks up again what workers prefetch, after kernels of `setup` have changed. */
qp_status threads_machine_find_weights(threads_machine *machine, qp_error *error);

/* Runs one pass over a batch of these sizes ([AXES]). `timings` is NULL, or [workers][longest] like
 * the schedule's instructions. When a counter never arrives, returns QP_INVALID and names worker,
 * instruction, counter, needed and found; the machine cannot be used afterwards. */
qp_status threads_machine_run(threads_machine *machine, const int64_t *sizes,
                              instruction_timing *timings, qp_error *error);
