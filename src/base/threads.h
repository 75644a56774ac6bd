/* A pool of threads that all run the same function on their share of the work.
 *
 * The caller is worker 0. Between runs the others sleep. The work is split by worker index and
 * count alone, so a result may depend on the number of workers but never on timing.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct thread_pool thread_pool;

typedef void thread_task(void *context, int worker, int n_workers);

/* n_workers >= 1, this thread included. */
qp_status thread_pool_create(int n_workers, thread_pool **out, qp_error *error);

/* Runs task(context, i, n) on every worker i and returns when all are done. A NULL pool runs it on
 * the caller alone.
 */
void thread_pool_run(thread_pool *pool, thread_task *task, void *context);

int thread_pool_size(const thread_pool *pool);

void thread_pool_destroy(thread_pool *pool);

/* The processors that this process may use (its affinity mask), at least 1. */
int threads_available(void);

/* Whether the process that started this one has bound it to other processors than its own, as
 * mpirun may. A set of processors that both have, of a container or by taskset, does not count. */
bool threads_bound_by_parent(void);

/* Binds this thread, and those that it creates, to processors of its own: of those that the process
 * may use, `count` after those of `index` others. Does nothing if there are fewer than all of
 * `n_others` + 1 need. */
void threads_bind(int index, int n_others, int count);

/* Worker i's share [*begin, *end) of `total` units; shares differ by at most one unit. */
static inline void thread_share(int64_t total, int worker, int n_workers, int64_t *begin,
                                int64_t *end)
{
    int64_t base = total / n_workers, extra = total % n_workers;
    *begin = worker * base + (worker < extra ? worker : extra);
    *end = *begin + base + (worker < extra);
}
