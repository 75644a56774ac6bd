/* Records when a pass's launches ran: one event before each launch, and one after the last. For
 * machine.c. */
#pragma once

#include "schedule/timeline.h"
#include "vm/cuda/executor.h"
#include "vm/machine.h"

typedef struct cuda_timing {
    schedule operators; /* the program up to its logits as one queue, in the order of launches */
    cuda_marks marks;   /* without capacity: launches are not timed */
    machine_part_sink *sink;
    void *context;                  /* the sink's */
    char kinds[TIMELINE_KINDS][48]; /* descriptions of launches, such as "linear + silu_and_mul" */
    int n_kinds;
    const batch *batch; /* the batch of the timed pass */
} cuda_timing;

/* `sink`, which may be NULL, receives each launch as a part of the first instruction that the
 * launch runs. */
qp_status cuda_timing_open(cuda_timing *timing, const cuda_executor *executor,
                           machine_part_sink *sink, void *context, qp_error *error);
void cuda_timing_free(cuda_timing *timing, const cuda_device *device);

/* Builds the schedule; of the options only costs, profile and context are used. */
qp_status cuda_timing_schedule(const cuda_executor *executor, const schedule_options *options,
                               schedule *out, qp_error *error);

/* Called before and after a pass is put into the stream, whose `status` the second call returns if
 * it failed. Otherwise that call waits for the pass and records its times. */
void cuda_timing_begin(cuda_timing *timing, cuda_executor *executor, const batch *batch,
                       machine_record *record);
qp_status cuda_timing_end(cuda_timing *timing, cuda_executor *executor, machine_record *record,
                          qp_status status, qp_error *error);
