/* What a signal from one thread of the machine `threads` to another costs. */
#ifndef QUIPU_VM_SIGNAL_H
#define QUIPU_VM_SIGNAL_H

#include "base/threads.h"

/* Nanoseconds from the last worker's signal to the end of all workers' waits, the best of some. */
qp_status threads_measure_signal(thread_pool *pool, double *ns, qp_error *error);

#endif
