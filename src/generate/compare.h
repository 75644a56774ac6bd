/* The five strategies side by side: what is predicted of them, and what they take. */
#ifndef QUIPU_GENERATE_COMPARE_H
#define QUIPU_GENERATE_COMPARE_H

#include "base/strbuf.h"
#include "quipu.h"

typedef struct compare_options {
    qp_engine_options engine; /* model, threads, context, chunk */
    const char *costs;        /* file of measured costs; NULL: guesses */
    double memory_fraction;   /* for pool; 0: from the costs */
    int64_t rounds;           /* at most 256; 0: 3, and as many as ten seconds allow */
    bool latency, throughput; /* settings to compare; neither: both */
    bool json;
    const volatile int *cancel; /* may be NULL */
} compare_options;

/* For each setting and strategy what is predicted, what was measured and the ratio; balance,
 * critical path and waiting of both. The strategies take turns, round after round, so that other
 * programs disturb all alike; the quickest pass of each is the one that was disturbed least. One
 * token behind the context in latency, a chunk of a prompt in throughput. */
qp_status schedule_compare(const compare_options *options, strbuf *out, qp_error *error);

#endif
