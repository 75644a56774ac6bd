/* What the files of `quipu bench` share. */
#pragma once

#include "cli/cli.h"

enum { MARKDOWN, CSV, JSON }; /* the index of --output */

typedef struct bench_result {
    const char *kind; /* "pp", "tg" */
    int64_t tokens;
    double mean, deviation;      /* tokens per second */
    double gigabytes;            /* of weights per second */
    uint64_t proposed, accepted; /* tokens, of all repetitions */
} bench_result;

typedef struct bench {
    const cli_call *call;
    const char *model; /* its path */
    qp_engine *engine;
    qp_session **sessions; /* [parallel] */
    qp_input *inputs;      /* [parallel] */
    qp_engine_info info;
    bool feeds_back; /* the GPU chooses the likeliest token and feeds it back */
    int32_t *tokens; /* [parallel][context]: fixed pseudo-random ids */
    int32_t *next;   /* [n_generate + 1][parallel]: the tokens generated side by side */
    /* [parallel]: for generation with proposals */
    qp_generate_options *options;
    qp_generate_result *made;
    qp_answer *answers;
    uint64_t proposed, accepted, generated, passes; /* with proposals: of all runs so far */
    double read_speed; /* the GPU's read bandwidth, bytes a second; 0: not measured */
    bench_result results[2];
    int n_results;
    const char *skip;        /* kinds of instructions to leave out; NULL: none */
    const struct bench *own; /* the same with quipu's own kernels; NULL: this is all */
} bench;

/* One run: `count` tokens after the depth, all at once or one by one; *seconds: its duration. */
qp_status bench_time_run(bench *b, size_t depth, size_t count, bool one_by_one, double *seconds);

/* A progress line on a terminal: which run of which test is in progress. */
void bench_show_run(const char *kind, int64_t count, int64_t run, int64_t runs);

/* --skip: runs the tests with and without the kinds of instructions, in turn, and prints what each
 * costs. */
qp_status bench_skip(bench *b, strbuf *out);
