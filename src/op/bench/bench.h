/* Times the kernels of one operator on one call, and compares them with the machine's limits.
 *
 * Candidates and the measurements of the limits alternate, round after round, so that other
 * programs disturb all of them alike. Each result is the median over the rounds, with the
 * quartiles. Calls rotate over copies of the tensors that together exceed the caches. After the
 * timing every candidate computes once more, from inputs that it has not seen, over poisoned
 * outputs, and units spread over the whole are compared with the reference.
 */
#pragma once

#include "base/threads.h"
#include "op/bench/hardware.h"
#include "op/op.h"

typedef struct bench_candidate {
    const char *name;
    op_kernel *kernel;
    const op_variant *variant; /* its packing and scratch; NULL: the operator's scratch */
} bench_candidate;

/* Gives the inputs of a call new contents, for the check after the timing. */
typedef void bench_refill(void *context, const op_call *call);

typedef struct bench_options {
    int rounds;
    double sample_seconds; /* calls are repeated until a sample has taken this long */
    size_t rotate_bytes;   /* least size of the copies of the tensors; 0: one copy */
    bench_refill *refill;  /* NULL: the check uses the inputs of the last call timed */
    void *context;
} bench_options;

typedef struct bench_figure {
    double median, low, high; /* low and high: quartiles */
} bench_figure;

typedef struct bench_result {
    bench_figure seconds; /* a call */
    double bytes, flops;  /* a second, at the median, by op_cost_of() */
    double of_read;       /* bytes per second / the machine's read speed, median of the rounds */
    double of_float;      /* FLOP per second / the machine's float32 FMA, likewise */
    double of_integer;    /* the same / its byte dot products */
    bool verified;        /* the outputs checked after the timing were right */
    double error;         /* their relative error (norm) */
} bench_result;

typedef struct bench_report {
    bench_figure limits[HARDWARE_LIMITS]; /* operations or bytes a second */
    op_cost cost;
    int copies; /* over which the calls rotated */
} bench_report;

/* Over how many copies of its tensors a call rotates, so that calls touch `rotate_bytes` in all.
 * The copies take about as much memory as that at most; there is at least one. */
int bench_copies(const op_info *op, const op_call *call, size_t rotate_bytes);

/* Times n candidates; results[n]. The call is bound and its inputs are filled; its outputs are
 * written. The machine's pool runs the calls. */
qp_status bench_run(const op_info *op, const op_call *call, const bench_candidate *candidates,
                    int n, hardware *hardware, thread_pool *pool, const bench_options *options,
                    bench_report *report, bench_result *results, qp_error *error);
