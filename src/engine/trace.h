/* What a trace records while the engine runs, to be told afterwards (trace_print.c). */
#ifndef QUIPU_ENGINE_TRACE_H
#define QUIPU_ENGINE_TRACE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "vm/batch.h"
#include "vm/mega/megakernel.h"
#include "vm/scheduled.h"
#include "quipu.h"
#include "schedule/schedule.h"

/* What decides the cost of a pass: [sequences + 1] or [sequences] each. */
typedef struct trace_indices {
    int32_t *qo_indptr, *kv_indptr, *kv_last_page_len;
} trace_indices;

typedef struct trace_pass {
    uint64_t begin, end; /* clock_ns(); end 0: not done */
    int64_t sizes[AXES];
    trace_indices indices;
    instruction_timing *timings; /* [workers][longest]; NULL in parts */
    bool bare;                   /* no more is known than when it was */
    mega_fetching fetching;      /* of the megakernel */
    size_t first_part, n_parts;
} trace_pass;

typedef struct trace_span {
    uint64_t begin, end;
} trace_span;

/* Of an engine that runs on a GPU. */
typedef struct trace_cuda {
    bool mega;          /* times are of the megakernel's entries; else of launches */
    schedule operators; /* the plan as one queue, where they are of launches */
    cuda_marks marks;
    size_t launched; /* passes recorded by the megakernel before the launch */
} trace_cuda;

struct qp_trace {
    qp_engine *engine;
    const schedule *schedule; /* whose instructions' times are recorded */
    const char *costs;        /* file of measured costs, or NULL */
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
    trace_cuda cuda;
};

/* Each may be called with a trace of NULL, where nothing is recorded.
 *
 * Where the next pass's times go; nowhere when it is not recorded. */
scheduled_record trace_begin_pass(qp_trace *trace, const batch *batch);

/* The pass is done. */
void trace_end_pass(qp_trace *trace);

/* The same of a pass that a GPU runs operator by operator. */
void trace_begin_operators(qp_trace *trace, const batch *batch);
qp_status trace_end_operators(qp_trace *trace, qp_error *error);

/* The same of a launch of the megakernel, whose first pass is over the batch; `ran`: its passes. */
void trace_begin_launch(qp_trace *trace);
qp_status trace_end_launch(qp_trace *trace, const batch *batch, int ran, qp_error *error);

/* For trace_cuda.c: what a GPU's trace needs before and after; limits; a pass's sizes, and the
 * place where it is recorded (NULL: no room), which counts once n_passes does. */
qp_status trace_cuda_open(qp_trace *trace, size_t max_passes, qp_error *error);
void trace_cuda_close(qp_trace *trace);
qp_status trace_cuda_limits(qp_trace *trace, qp_error *error);
trace_pass *trace_take_pass(qp_trace *trace, const batch *batch);

/* Turns the times of a launch's n passes, as blocks stamped them, to this machine's clock, by which
 * the last pass ended at `now`, and finds where each begins and ends: passes meet where the first
 * block has the token. */
qp_status trace_place_passes(const schedule *schedule, trace_pass *passes, int n, uint64_t now,
                             qp_error *error);

/* Around the sampling of a token: the first gives what the second takes. */
uint64_t trace_begin_sampling(const qp_trace *trace);
void trace_end_sampling(qp_trace *trace, uint64_t begin);

#endif
