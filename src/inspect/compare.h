/* The five strategies side by side: what is predicted of them, and what they take. */
#ifndef QUIPU_INSPECT_COMPARE_H
#define QUIPU_INSPECT_COMPARE_H

#include "base/strbuf.h"
#include "quipu.h"

typedef struct compare_options {
    const char *model;   /* a .gguf file, a Hugging Face directory, a synthetic model's name */
    const char *device;  /* "cuda": a GPU, threads being the megakernel's blocks; NULL: the CPU */
    const char *machine; /* the GPU's name; NULL: this processor's */
    int threads;
    int64_t context, chunk;   /* 0: 1,024 positions and 512 tokens, or what the model has */
    const char *costs;        /* file of measured costs; NULL: guesses */
    double memory_fraction;   /* for pool; 0: from the costs */
    int64_t rounds;           /* at most 256; 0: 3, and as many as ten seconds allow */
    bool latency, throughput; /* settings to compare; neither: both */
    bool json;
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
    const volatile int *cancel; /* may be NULL */
} compare_options;

/* For each setting and strategy what is predicted, what was measured and the ratio; balance,
 * critical path and waiting of both. The strategies take turns, round after round, so that other
 * programs disturb all alike; the quickest pass of each is the one that was disturbed least, and
 * "undisturbed" is how long the queues would take if every instruction took its own least. One
 * token after the context in latency, a chunk of a prompt in throughput. */
qp_status schedule_compare(const compare_options *options, strbuf *out, qp_error *error);

#endif
