/* Measuring what instructions cost on this machine, by timing them where they run. */
#ifndef QUIPU_INSPECT_MEASURE_H
#define QUIPU_INSPECT_MEASURE_H

#include "base/strbuf.h"
#include "quipu.h"

typedef struct measure_options {
    const char *device;       /* "cuda": the GPU's megakernel; NULL: the CPU */
    int threads;              /* 0: the processors that this process may use; of a GPU the blocks */
    const char *const *types; /* of weights, NULL ends them; NULL: all that can be made */
    const char *large;        /* preset whose weights fit no cache; NULL: llama-3.2-1b */
    const char *path;         /* of the file that is written */
    double seconds;           /* for each kind of pass; 0: a quarter */
    size_t read_bytes;        /* memory that is read at most; 0: 1 GiB */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
    const volatile int *cancel; /* may be NULL */
} measure_options;

/* Runs synthetic models of every type, alone and with all workers, with one token and with many, on
 * the CPU machine, and takes the least time of each instruction, which other programs disturb
 * least; measures what a signal costs there, and how fast memory is read; writes the file and
 * appends a summary to `out`. Types whose model does not fit in memory are left out. On a GPU, the
 * means of passes of one token, with what each operator waits behind the mean end of those that it
 * waits for: who is late is part of that. */
qp_status measure_costs(const measure_options *options, strbuf *out, qp_error *error);

typedef struct measure_gpu {
    char name[96];
    int n_multiprocessors;
} measure_gpu;

/* The GPU that is measured; QP_DEVICE, with the reason, when there is none. */
qp_status measure_find_gpu(measure_gpu *out, qp_error *error);

#endif
