/* What a signal from one thread to another costs in the machine `threads`. */
#pragma once

#include "base/threads.h"

/* Nanoseconds from the last worker's signal to the end of all workers' waits, the best of several
 * measurements. */
qp_status threads_measure_signal(thread_pool *pool, double *ns, qp_error *error);
