/* A program as text for people: the lifetime table and the shapes. Neither reads weights. */
#ifndef QUIPU_LOWER_PRINT_H
#define QUIPU_LOWER_PRINT_H

#include "base/status.h"
#include "base/strbuf.h"
#include "plan/program.h"

#include <stdint.h>

typedef struct plan_print_options {
    const char *model; /* as model_open() takes it */
    int64_t tokens;    /* new tokens in a forward pass */
    int64_t context;   /* 0: the model's */
    int64_t sequences;
    int64_t ranks, rank;
    bool reduce; /* the cut of several ranks: PLAN_REDUCE, else PLAN_GATHER */
    int64_t page_size;
    const char *kv_type;
    const char *act_type;  /* "F32" or "BF16"; NULL: F32 */
    uint64_t available;    /* bytes that the largest context is computed for */
    plan_form form;        /* which operators make the pass */
    bool fuse;             /* the forward pass for few tokens */
    const char *rules;     /* to take and to leave out, as lower_parse_rules() reads them */
    bool sums;             /* that of the megakernel */
    int64_t kv_partitions; /* fused: parts that attention is split in */
    bool verbose;          /* which rules are taken how often, and why not */
    bool json;
    const char *gpu; /* JSON that the plan's gets as "gpu"; NULL: none */
} plan_print_options;

/* The lifetime table (a row a step, a column a tensor), the exact bytes of every part, and the
 * largest context that fits. */
qp_status plan_print_lifetimes(const plan_print_options *options, strbuf *out, qp_error *error);

typedef struct shapes_print_options {
    const char *model;
    int64_t tokens, batch;
    const char *act_type; /* as above */
    plan_form form;
    bool fuse, sums;
    const char *rules;
    int64_t kv_partitions;
    bool json;
} shapes_print_options;

/* Every step's shapes, in symbols and in numbers: prefill of `tokens` tokens of one sequence, and
 * one token each of `batch` sequences. */
qp_status plan_print_shapes(const shapes_print_options *options, strbuf *out, qp_error *error);

#endif
