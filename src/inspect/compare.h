/* Compares the five strategies, and a saved schedule: the times that are predicted for them and the
 * measured ones. */
#pragma once

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
    /* A schedule of CPU threads in a file, which is compared with the strategies. They get its
     * setting, its number of workers, and the plan of a run, as it has. NULL: there is none. */
    const char *load;
    bool fuse; /* with `load`: as for the run that it was saved for */
    int64_t kv_partitions;
    bool json;
    bool by_operator; /* also what each operator's instructions took, predicted and measured */
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

/* The number of workers of a saved schedule, which its comparison has. */
qp_status compare_find_workers(const char *load, int *workers, qp_error *error);
