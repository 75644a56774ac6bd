/* The server's workers: a few threads that parse, tokenize and format, so that neither the I/O
 * thread nor the engine thread does.
 *
 * A worker runs tasks in their order, calls `more` after each, and sleeps when neither has work.
 * Waking does not block: each worker has an eventfd, which is written only while the worker sleeps.
 *
 * One more worker runs the tasks that may take long, so that no number of them delays the others.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>

/* Embedded in the object that it works on; at most once in the queue. */
typedef struct worker_task {
    void (*run)(struct worker_task *task);
    struct worker_task *next;
} worker_task;

typedef enum worker_lane { LANE_SHORT, LANE_LONG } worker_lane;

typedef struct worker_pool worker_pool;

/* `n_workers` for short tasks, and one for long ones. `more` does one piece of other work; false:
 * there is none. From any of those for short tasks, several at once. */
qp_status workers_open(int n_workers, bool (*more)(void *context), void *context, worker_pool **out,
                       qp_error *error);

/* From any thread. */
void workers_put(worker_pool *pool, worker_lane lane, worker_task *task);

/* `more` would find something: wakes a worker that sleeps. From any thread; does not block. */
void workers_wake(worker_pool *pool);

/* Runs the queued tasks, then ends the threads. No task may be added after this. NULL is allowed.
 */
void workers_close(worker_pool *pool);
