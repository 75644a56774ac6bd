/* What a person sees of the GPU's memory before anything is loaded: quipu plan --device cuda. */
#ifndef QUIPU_GENERATE_CUDA_PRINT_H
#define QUIPU_GENERATE_CUDA_PRINT_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

typedef struct cuda_print_options {
    const char *model;                             /* as model_open() takes it */
    int64_t tokens, context, sequences, page_size; /* as plan_print_options has them */
    const char *kv_type;
} cuda_print_options;

/* The exact bytes of every part of a run on the GPU, and whether they fit the one that is here.
 * Reads no weights, and needs no GPU. */
qp_status cuda_print_memory(const cuda_print_options *options, strbuf *out, qp_error *error);

#endif
