/* A program as a schedule over an executor's memory and kernels, ready for `serial` or `threads`.
 */
#pragma once

#include "schedule/schedule.h"
#include "vm/bound.h"
#include "vm/execute.h"

typedef struct scheduled {
    const executor *executor;
    schedule schedule;
    bound_kernel *kernels; /* [schedule.n_nodes] */
    bound_schedule bound;  /* binds all of these */
} scheduled;

/* Makes and verifies a schedule of `workers` queues, at most one for each thread of the executor's
 * pool, and ignores the number of workers in `options` (NULL: the defaults). If `file` is not NULL,
 * reads the schedule that schedule_save() wrote there instead; it must have as many queues, and all
 * steps up to the logits. The executor outlives the result. scheduled_free() it, also after a
 * failure. */
qp_status scheduled_init(scheduled *scheduled, const executor *executor, int workers,
                         const schedule_options *options, const char *file, qp_error *error);
void scheduled_free(scheduled *scheduled);

/* Takes the executor's kernels and packed weights, which change when executor_pack_more() has
 * packed some. */
void scheduled_take_kernels(scheduled *scheduled);

/* The schedule that scheduled_init() would make. schedule_free() it, also after a failure. */
qp_status scheduled_make(const program *program, int workers, const schedule_options *options,
                         const char *file, schedule *out, qp_error *error);
