/* Compares the five strategies: the times that are predicted for them and the measured ones. */
#ifndef QUIPU_INSPECT_COMPARE_H
#define QUIPU_INSPECT_COMPARE_H

#include "base/strbuf.h"
#include "quipu.h"

typedef struct compare_options {
    const char *model;   /* a .gguf file, a Hugging Face directory, a synthetic model's name */
    const char *device;  /* "cuda": a GPU, with `threads` blocks of the megakernel; NULL: the CPU */
    const char *machine; /* the GPU's name; NULL: this processor's */
    int threads;
    int64_t context, chunk;   /* 0: 1,024 positions and 512 tokens, or the model's own limits */
    const char *costs;        /* file of measured costs; NULL: guessed costs */
    double memory_fraction;   /* for pool; 0: from the costs */
    int64_t rounds;           /* at most 256; 0: at least 3, and as many as ten seconds allow */
    bool latency, throughput; /* settings to compare; neither set: both */
    bool json;
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
    const volatile int *cancel; /* may be NULL */
} compare_options;

/* Prints, for each setting and strategy, the predicted and the measured time and their ratio, and
 * for both balance, critical path and waiting. The strategies run in turn, round after round, so
 * that other programs disturb all of them equally. "Measured" is the quickest pass of each, which
 * was disturbed least; "undisturbed" is the time of the queues with every instruction's own least
 * time. Setting latency runs one token after the context, throughput a chunk of a prompt. */
qp_status schedule_compare(const compare_options *options, strbuf *out, qp_error *error);

#endif
