/* What a person sees of a run on the GPU before anything is loaded: quipu plan --device cuda. */
#ifndef QUIPU_INSPECT_CUDA_PRINT_H
#define QUIPU_INSPECT_CUDA_PRINT_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cuda_print_options {
    const char *model;                             /* as model_open() takes it */
    int64_t tokens, context, sequences, page_size; /* as plan_print_options has them */
    const char *kv_type;
    uint64_t memory;  /* bytes to hold it against; 0: what the GPU here has free */
    const char *arch; /* "sm_90": a GPU that is described; NULL: the one here */
    bool json;
} cuda_print_options;

/* The launches of a pass, and the exact bytes of every part of a run on the GPU, whether they fit,
 * and the largest context that does. Reads no weights, and needs no GPU: without one the launches
 * are those for `arch`, or for an H100, and without `memory` nothing is compared with the bytes. */
qp_status cuda_print_run(const cuda_print_options *options, strbuf *out, qp_error *error);

#endif
