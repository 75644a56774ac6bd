/* Prints a run on the GPU before anything is loaded: quipu plan --device cuda. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cuda_print_options {
    const char *model;                             /* as model_open() takes it */
    int64_t tokens, context, sequences, page_size; /* as in plan_print_options */
    int64_t ranks, rank;                           /* the same; 0 ranks: one */
    bool reduce;
    const char *kv_type;
    uint64_t memory;         /* bytes to compare the run with; 0: the free memory of the GPU here */
    const char *activations; /* as in qp_engine_options; or NULL */
    const char *arch;        /* "sm_90": a GPU known by its figures alone; NULL: the GPU here */
    const char *rules;       /* to take and to leave out, as lower_parse_rules() reads them */
    adapter_choices adapters;
    bool verbose; /* which launch rules are taken how often, and why not */
    bool json;
} cuda_print_options;

/* Prints the launches of a pass, the exact bytes of every part of a run on the GPU, whether they
 * fit, and the largest context that does. Reads no weights and needs no GPU. Without one, the
 * launches are those for `arch`, or for an H100, and without `memory` the bytes are compared with
 * nothing. */
qp_status cuda_print_run(const cuda_print_options *options, strbuf *out, qp_error *error);
