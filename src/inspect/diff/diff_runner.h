/* Inside of a comparison: its state, and what diff_run.c and diff_state.c share. */
#pragma once

#include "engine/pages.h"
#include "inspect/diff/diff_run.h"
#include "inspect/diff/diff_side.h"

typedef enum diff_round {
    ROUND_ALONE,    /* each step from the other side's inputs */
    ROUND_TOGETHER, /* each side from its own, step by step */
    ROUND_AT_ONCE,  /* b without a stop between steps: the same bits as in the round before */
} diff_round;

typedef struct runner {
    const program *program;
    const diff_request *request;
    diff_report *report;
    diff_side a, b;
    /* References that round as a's and b's kernels do, if these round differently. */
    bool oracles;
    machine rounded_a, rounded_b;
    diff_side oracle_a, oracle_b;
    batch batch;
    page_pool pages;
    page_list list;
    int64_t past; /* tokens before the batch */
    int pass;
    bool all_same;        /* every node has the same kernel on both sides */
    uint64_t *left;       /* [passes][n_tensors]: hashes of b's tensors in round two */
    uint64_t *left_cache; /* [layers][2] */
    float **left_logits;  /* [passes]: of round two, where their bits may differ at once; or NULL */
} runner;

static inline size_t runner_bytes(const runner *r, plan_tensor_id id)
{
    return program_tensor_bytes(r->program, id, &r->batch.sizes);
}

static inline qp_status runner_fetch(const runner *r, const diff_side *s, plan_tensor_id id,
                                     int64_t layer, qp_error *error)
{
    return diff_side_fetch(s, id, layer, &r->batch.sizes, error);
}

/* Keeps hashes of the outputs and of what the last step writes in round two; compares with them in
 * round three. */
qp_status runner_hold_tensors(runner *r, diff_round round, qp_error *error);

/* The same with the KV cache, unless chains of FP8 give it other bits. */
qp_status runner_hold_caches(const runner *r, diff_round round, qp_error *error);
