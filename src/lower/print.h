/* A program as text for people: the lifetime table and the shapes. Neither reads weights. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "model/model.h"
#include "plan/program.h"

#include <stdint.h>

typedef struct plan_print_options {
    const char *model; /* as model_open() takes it */
    int64_t tokens;    /* new tokens in a forward pass; 0: 512, or as many as there is room for */
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
    adapter_choices adapters;
    bool json;
    const char *gpu; /* JSON that the plan's gets as "gpu"; NULL: none */
} plan_print_options;

/* *tokens, 0 being the default, of sequences of `context` positions. QP_INVALID: more than they
 * hold together. */
qp_status plan_print_tokens(int64_t *tokens, int64_t context, int64_t sequences, qp_error *error);

/* The program that is printed, and its model; to program_free() and model_close(). */
qp_status plan_print_open(const plan_print_options *options, model **model, program *out,
                          qp_error *error);

/* The lifetime table (a row a step, a column a tensor), the exact bytes of every part, and the
 * largest context that fits. */
qp_status plan_print_lifetimes(const plan_print_options *options, strbuf *out, qp_error *error);

typedef struct shapes_print_options {
    const char *model;
    int64_t tokens, batch;
    const char *act_type; /* as above; tokens too, of a prompt */
    plan_form form;
    bool fuse, sums;
    const char *rules;
    int64_t kv_partitions;
    bool json;
} shapes_print_options;

/* Every step's shapes, in symbols and in numbers: prefill of `tokens` tokens of one sequence, or
 * with PLAN_PADDED of each of `batch`; and one token each of `batch` sequences. Layers that are
 * alike are printed once. QP_INVALID: more tokens than the model has positions. */
qp_status plan_print_shapes(const shapes_print_options *options, strbuf *out, qp_error *error);
