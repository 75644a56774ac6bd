/* Statistics of the batcher: counters, histograms, sequences, pages, the prefix tree.
 *
 * The engine thread counts. batcher_snapshot() requests a copy, which that thread makes between two
 * steps, so all numbers belong to the same moment, and nothing is copied without a request.
 */
#pragma once

#include "server/batcher.h"

/* ---- histograms ---------------------------------------------------------------------------- */

enum { HISTOGRAM_BOUNDS = 22 };

typedef enum histogram_unit { HISTOGRAM_SECONDS, HISTOGRAM_TOKENS } histogram_unit;

/* counts[i]: values up to the i-th bound that are above the one before; the last: above all. */
typedef struct histogram {
    histogram_unit unit;
    uint64_t counts[HISTOGRAM_BOUNDS + 1], count;
    double sum;
} histogram;

/* [HISTOGRAM_BOUNDS], rising. */
const double *histogram_bounds(histogram_unit unit);

void histogram_add(histogram *histogram, double value);

/* ---- a snapshot ---------------------------------------------------------------------------- */

typedef enum sequence_state {
    SEQUENCE_WAITING,
    SEQUENCE_PROMPT, /* reads its prompt */
    SEQUENCE_DECODING,
    SEQUENCE_PAUSED /* its client is slow */
} sequence_state;

/* "waiting", "prompt", ... */
const char *sequence_state_name(sequence_state state);

/* A choice that waits or runs. */
typedef struct sequence_stats {
    uint64_t id; /* of the request; counts from 1 */
    size_t choice;
    sequence_state state;
    size_t prompt_tokens, cached_tokens, positions, generated, max_tokens, pages;
    uint64_t adapters; /* bit i: it uses adapter i */
    int slot;          /* -1: none */
    int64_t node;      /* the deepest node of the tree whose page it holds; 0: none */
} sequence_stats;

/* Pages of the prefix tree in a row, without a branch or a change of users between them. */
typedef struct tree_stats {
    int64_t id, parent; /* `id` counts from 1 and names the row's last page; 0: the root */
    size_t tokens, pages;
    size_t users; /* sequences that hold them */
} tree_stats;

/* A call of qp_step(). */
typedef struct pass_stats {
    double milliseconds;
    size_t passes, prompt_tokens, decode_tokens, sequences;
} pass_stats;

enum {
    STATS_PASSES = 64,
    STATS_NODES = 256,
    STATS_DRAFT = 16,
    STATS_FINISHES = REQUEST_FAILED + 1
};

typedef struct batcher_stats {
    uint64_t time; /* clock_ns() */
    size_t slots, waiting, running;
    size_t page_size, pages_total, pages_used, pages_cached; /* cached: that no sequence holds */
    /* Since the start. */
    uint64_t requests, prompt_tokens, cached_tokens, generated_tokens, preemptions, steps, passes;
    uint64_t parked;                           /* choices that gave their slot up */
    uint64_t proposed_tokens, accepted_tokens; /* see qp_engine_options.speculate */
    uint64_t drafts, accepted_at[STATS_DRAFT]; /* verifications; acceptances by place of a draft */
    uint64_t finished[STATS_FINISHES];         /* choices by finish */
    double last_first_token;                   /* seconds from arrival */
    double own_seconds; /* the engine thread's between steps that follow each other */
    uint64_t own_steps; /* those steps */
    histogram first_token, next_token, end_to_end, queued; /* seconds */
    histogram reading, making, running_time; /* seconds of a request: to its first token, from it,
                                              * and both, since it got a slot */
    histogram prompt_length, answer_length, batch_length; /* tokens; of a step */
    histogram most_tokens;                                /* of an answer, where a request says */
    histogram computed_length, longest_answer; /* tokens of a prompt that were not cached; of the
                                                * longest choice */
    histogram choices;                         /* of a request */
    histogram per_token;                       /* seconds of a choice, after its first token */

    pass_stats recent[STATS_PASSES]; /* the last n_recent, the oldest first */
    size_t n_recent;
    sequence_stats *sequences; /* [n_sequences]: those that run, then those that wait */
    size_t n_sequences;
    tree_stats tree[STATS_NODES]; /* parents first */
    size_t n_tree;
} batcher_stats;

/* Waits for the end of the step at hand. batcher_stats_free() the result; QP_NO_MEMORY. */
qp_status batcher_snapshot(batcher *batcher, batcher_stats *out, qp_error *error);
void batcher_stats_free(batcher_stats *stats);
