/* The requests of a run and their times. The options and the seed determine arrival, lengths and
 * body of request i. */
#pragma once

#include "load/load.h"
#include "load/prompt.h"
#include "load/trace_file.h"

typedef struct workload {
    const load_options *options;
    const char *model;
    prompt_source source;
    bool ids; /* prompts are token ids */
    trace_file trace;
    size_t *rows; /* [n_rows] indices of the trace's rows that are run */
    size_t n_rows;
    size_t left_out;    /* rows of the trace that need too many positions */
    double trace_begin; /* time of the first row that is run */
    prompt_part *parts; /* room for the parts of one prompt */
} workload;

/* Checks the options and reads the trace. Call workload_close() in every case. */
qp_status workload_open(const load_options *options, workload *out, qp_error *error);
void workload_close(workload *w);

/* Number of requests; SIZE_MAX: as many as the time allows. */
size_t workload_count(const workload *w);

/* Whether requests have times of arrival. If not, a free stream starts the next. */
bool workload_has_arrivals(const workload *w);

/* Seconds from the start of the run to the arrival of request i. Call it for i = 0, 1, 2, ... with
 * the arrival of the previous one. */
double workload_arrival(const workload *w, size_t i, double before);

/* The lengths of request i. */
void workload_lengths(const workload *w, size_t i, int64_t *input, int64_t *output);

/* Tokens of a block of the trace, scaled. */
int64_t workload_block(const workload *w);

/* The ids of the blocks that the prompt of request i begins with, [*n]. */
const uint64_t *workload_blocks(const workload *w, size_t i, size_t *n);

/* Appends the JSON of request i. Requests of the warm-up have numbers from WORKLOAD_WARMUP on, so
 * they share only prefixes with the measured ones. */
#define WORKLOAD_WARMUP (SIZE_MAX / 2)
void workload_body(const workload *w, size_t i, strbuf *out);
