/* What a trace records while the engine runs; qp_trace_print() in quipu.h tells it. */
#ifndef QUIPU_GENERATE_TRACE_H
#define QUIPU_GENERATE_TRACE_H

#include "generate/batch.h"
#include "quipu.h"
#include "schedule/schedule.h"

/* Each may be called with a trace of NULL, where nothing is recorded.
 *
 * Where the next pass's times go: [workers][longest], or NULL when it is not recorded. */
instruction_timing *trace_begin_pass(qp_trace *trace, const batch *batch);

/* The pass is done. */
void trace_end_pass(qp_trace *trace);

/* Around the sampling of a token: the first gives what the second takes. */
uint64_t trace_begin_sampling(const qp_trace *trace);
void trace_end_sampling(qp_trace *trace, uint64_t begin);

#endif
