/* Searches for a schedule that is quicker than the strategies': `quipu schedule --tune`. */
#pragma once

#include "base/strbuf.h"
#include "quipu.h"

typedef struct tune_options {
    const char *model; /* a .gguf file, a Hugging Face directory, a synthetic model's name */
    int threads;
    int64_t context, chunk; /* as for the run that the schedule is for; 0: its defaults */
    bool throughput;        /* a chunk of a prompt; else one token at the end of the context */
    double seconds; /* that the search takes, and again a quarter of it for the last round */
    uint64_t seed;
    const char *costs; /* file of measured costs; NULL: guessed costs */
    bool verbose;      /* print candidates that were not kept, too */
    const char *save;  /* the file that gets the best schedule */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
    const volatile int *cancel; /* may be NULL */
} tune_options;

/* The five strategies run in turn, and the quickest by its median is the first best. A candidate is
 * that one with another group, or a neighbour of the best schedule so far that is predicted to be
 * quicker. It runs in turn with the best, and replaces it where the interval of their ratio lies
 * below 1 (base/paired.h). At the end the best runs in turn with the quickest strategy once more,
 * because the luckiest of many candidates may be one only by luck; unless it is quicker again, the
 * strategy's schedule is saved. So what is saved is never slower than the strategies, as far as
 * such a comparison can tell. Every schedule is proved sound before it runs. QP_CANCELLED keeps
 * nothing. */
qp_status schedule_tune(const tune_options *options, strbuf *out, qp_error *error);
