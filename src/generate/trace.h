/* What a trace records while the engine runs, to be told afterwards (trace_print.c). */
#ifndef QUIPU_GENERATE_TRACE_H
#define QUIPU_GENERATE_TRACE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "generate/batch.h"
#include "generate/scheduled.h"
#include "quipu.h"
#include "schedule/schedule.h"

/* What decides the cost of a pass: [sequences + 1] or [sequences] each. */
typedef struct trace_indices {
    int32_t *qo_indptr, *kv_indptr, *kv_last_page_len;
} trace_indices;

typedef struct trace_pass {
    uint64_t begin, end; /* clock_ns(); end 0: not done */
    int64_t sizes[SCHEDULE_AXES];
    trace_indices indices;
    instruction_timing *timings; /* [workers][longest]; NULL in parts */
    size_t first_part, n_parts;
} trace_pass;

typedef struct trace_span {
    uint64_t begin, end;
} trace_span;

struct qp_trace {
    qp_engine *engine;
    const char *costs; /* file of measured costs, or NULL */
    machine_profile limits;
    uint64_t begin;
    trace_pass *passes;
    size_t n_passes, max_passes;
    trace_span *samplings; /* [max_passes + 1] */
    size_t n_samplings;
    arena memory;
    buffer timings; /* of all passes */
    /* Of an engine that runs one instruction at a time; what they take is not known beforehand. */
    parts *runner;
    timeline_part *parts;
    size_t n_parts, parts_capacity;
    bool lost; /* memory for parts was out */
};

/* Each may be called with a trace of NULL, where nothing is recorded.
 *
 * Where the next pass's times go; nowhere when it is not recorded. */
scheduled_record trace_begin_pass(qp_trace *trace, const batch *batch);

/* The pass is done. */
void trace_end_pass(qp_trace *trace);

/* Around the sampling of a token: the first gives what the second takes. */
uint64_t trace_begin_sampling(const qp_trace *trace);
void trace_end_sampling(qp_trace *trace, uint64_t begin);

#endif
