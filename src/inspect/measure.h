/* Measures what instructions cost on this machine, by timing them in a running pass. */
#pragma once

#include "base/strbuf.h"
#include "cuda/driver.h"
#include "quipu.h"

typedef struct measure_options {
    const char *device; /* "cuda": the GPU's megakernel; NULL: the CPU */
    int threads;        /* 0: the processors that this process may use; on a GPU, all blocks */
    const char *types;  /* of weights, separated by commas; NULL: all types that can be made */
    const char *large;  /* preset whose weights are larger than the caches; NULL: llama-3.2-1b */
    const char *path;   /* path of the file that is written */
    double seconds;     /* seconds for each kind of pass; 0: a quarter */
    size_t read_bytes;  /* most memory that is read; 0: 1 GiB */
    void (*progress)(void *context, const char *text, bool finished); /* may be NULL */
    void *progress_context;
    const volatile int *cancel; /* may be NULL */
} measure_options;

/* On the CPU: runs synthetic models of every type, with one worker and with all, with one token and
 * with many, and takes the times of the quickest pass, which other programs disturbed least.
 * Measures also the cost of a signal and the rate at which memory is read. Writes the file,
 * after a check that it can be written, and appends a summary to `out`. Types whose model does not
 * fit in memory are left out.
 *
 * On a GPU: measures the mean time of each operator over passes of one token, and the mean wait
 * after the mean end of the instructions that it waits for. The mean includes late blocks. */
qp_status measure_costs(const measure_options *options, strbuf *out, qp_error *error);

typedef struct measure_gpu {
    char name[96];
    int n_multiprocessors;
} measure_gpu;

/* Finds the GPU that is measured; QP_DEVICE, with the reason, when there is none. */
qp_status measure_find_gpu(measure_gpu *out, qp_error *error);

enum { MEASURE_MAX_GPUS = 16 };

/* The GPUs that this process sees, by their numbers, and how each reaches the memory of the others.
 */
typedef struct measure_gpus {
    char nccl[40]; /* version of NCCL, "2.27.3"; "": it is not there */
    int count;
    measure_gpu of[MEASURE_MAX_GPUS];
    cuda_link links[MEASURE_MAX_GPUS][MEASURE_MAX_GPUS]; /* [from][to] */
} measure_gpus;

/* Reads properties only; no context is made. A GPU that the program has no code for is listed too.
 */
qp_status measure_list_gpus(measure_gpus *out, qp_error *error);
