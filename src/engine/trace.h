/* What a trace records while the engine runs; inspect/timeline/trace_print.c prints it. */
#pragma once

#include "base/arena.h"
#include "base/buffer.h"
#include "engine/owner.h"
#include "quipu.h"
#include "schedule/schedule.h"
#include "schedule/timeline.h"
#include "vm/batch.h"
#include "vm/machine.h"

/* What decides the cost of a pass: [sequences + 1] or [sequences] each. */
typedef struct trace_indices {
    int32_t *qo_indptr, *kv_indptr, *kv_last_page_len;
} trace_indices;

typedef struct trace_pass {
    int64_t sizes[AXES];
    trace_indices indices;
    size_t first_part, n_parts;
} trace_pass;

typedef struct trace_span {
    uint64_t begin, end;
} trace_span;

struct qp_trace {
    engine_object object;
    qp_engine *engine;
    const machine *machine;    /* whose instructions are timed: the first that the engine asks */
    const schedule *schedule;  /* that it runs; of several ranks the first one's */
    const schedule **of_ranks; /* [n_ranks] */
    int n_ranks;
    const char *costs; /* file of measured costs, or NULL */
    machine_profile limits;
    uint64_t begin;
    trace_pass *passes;
    machine_record *records; /* [max_passes]; of a pass that another machine ran, only its begin and
                              * end are known */
    size_t n_passes, max_passes;
    atomic_bool full;      /* it records no more passes */
    size_t prompt_passes;  /* the first of them, as qp_trace_options has it */
    trace_span *samplings; /* [max_passes]: between passes */
    size_t n_samplings;
    arena memory;
    buffer timings; /* of all passes */
    bool in_parts;  /* the machine hands over parts of operators, or launches */
    int n_tracks;   /* of these parts */
    timeline_part *parts;
    size_t n_parts, parts_capacity;
    bool lost; /* memory for parts was out */
};

/* The number of instructions that are timed in a pass of the first `ranks` ranks. */
size_t trace_places(const qp_trace *trace, int ranks);

/* Ends the recording. */
void trace_stop(qp_trace *trace);

/* Each may be called with a trace of NULL, where nothing is recorded.
 *
 * Around a run on one of the engine's machines: the first gives the request places for records, as
 * far as there is room. */
void trace_begin_run(qp_trace *trace, const machine *machine, machine_request *request);
void trace_end_run(qp_trace *trace, const machine_request *request);
