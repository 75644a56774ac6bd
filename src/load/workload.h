/* What a run asks and when: request i has an arrival, lengths and a body, all fixed by the options
 * and the seed. */
#ifndef QUIPU_LOAD_WORKLOAD_H
#define QUIPU_LOAD_WORKLOAD_H

#include "load/load.h"
#include "load/prompt.h"
#include "load/trace_file.h"

typedef struct workload {
    const load_options *options;
    const char *model;
    prompt_source source;
    bool ids; /* prompts are token ids */
    trace_file trace;
    size_t *rows; /* [n_rows] of the trace, those that are run */
    size_t n_rows;
    size_t left_out;    /* of the trace, because they need too many positions */
    double trace_begin; /* of the first row that is run */
    prompt_part *parts; /* room for one prompt's */
} workload;

/* Checks the options and reads the trace. workload_close() in each case. */
qp_status workload_open(const load_options *options, workload *out, qp_error *error);
void workload_close(workload *w);

/* How many requests there are; SIZE_MAX: as many as the time allows. */
size_t workload_count(const workload *w);

/* Whether requests come at times of their own, and not when a stream is free. */
bool workload_has_arrivals(const workload *w);

/* Seconds from the run's beginning to the arrival of request i; called for i = 0, 1, 2, ... with
 * the arrival of the one before. */
double workload_arrival(const workload *w, size_t i, double before);

/* Lengths that request i asks for. */
void workload_lengths(const workload *w, size_t i, int64_t *input, int64_t *output);

/* Appends the JSON of request i. Requests for the warm-up have numbers from WORKLOAD_WARMUP on, so
 * that they share no more than the prefixes with those that count. */
#define WORKLOAD_WARMUP (SIZE_MAX / 2)
void workload_body(const workload *w, size_t i, strbuf *out);

#endif
