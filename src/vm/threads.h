/* The CPU machine: a thread for each cord, counters between them.
 *
 * Every worker reads its queue knot by knot: it waits until the counters have come as far as the
 * instruction needs, runs the kernel on its slice, and signals. A signal is a release and a wait an
 * acquire, so what was written before the one is seen after the other. Counters are never reset;
 * passes are told apart by what is waited for. Between passes the threads sleep in the pool.
 */
#ifndef QUIPU_VM_THREADS_H
#define QUIPU_VM_THREADS_H

#include "base/threads.h"
#include "vm/bound.h"

typedef struct threads_machine threads_machine;

/* The pool has as many workers as the schedule has queues; both outlive the machine, as does all
 * that `setup` points to. `patience_ns`: how long a wait may last before the pass is given up; 0
 * stands for 30 seconds. */
qp_status threads_machine_create(const bound_schedule *setup, thread_pool *pool,
                                 uint64_t patience_ns, threads_machine **out, qp_error *error);
void threads_machine_destroy(threads_machine *machine);

/* From the next pass on only instructions of the plan's steps [first, last) work; the others wait
 * and signal as ever. 0, 0: all of them work, as at first. */
void threads_machine_select(threads_machine *machine, int first, int last);

/* One pass over a batch of these sizes ([AXES]). `timings` is NULL, or [workers][longest]
 * like the schedule's instructions. When a counter never comes, QP_INVALID names worker,
 * instruction, counter, needed and found; the machine cannot be used any more then. */
qp_status threads_machine_run(threads_machine *machine, const int64_t *sizes,
                              instruction_timing *timings, qp_error *error);

#endif
