/* What the engine keeps from one call of qp_step() to the next: see step.c. */
#pragma once

#include "base/buffer.h"
#include "engine/run.h"
#include "engine/sampler.h"

enum { STEP_MAX_PASSES = 16 }; /* of a run */

/* A range of new tokens of one sequence in the batch. */
typedef struct step_part {
    qp_sequence *of;
    size_t count;
    bool ends; /* these are the sequence's last new tokens */
    int64_t first_output, n_outputs;
    int64_t first_hidden, n_hidden; /* of the hidden states that are handed out */
    bool verifies; /* its only new token is followed by proposals, each with a row of its own */
} step_part;

/* A row of logits of the batch, and the sequence whose next token is chosen from it. */
typedef struct step_row {
    qp_sequence *of;           /* in the current call; NULL: none */
    bool wanted;               /* it wants more tokens */
    uint64_t session, sampler; /* their ids; 0: no token is chosen */
    int32_t slot;
    int32_t last; /* the token that was chosen last, if `going` */
    bool going;   /* it continues from `last`; false: the row follows new tokens of a part */
    size_t held;  /* tokens of the session at the end of the previous call */
    int proposed; /* rows after this one that read the sequence's proposals */
} step_row;

/* Passes of fixed shapes: see step_pad.c. */
typedef struct step_fixed {
    int64_t rows; /* that a pass which continues sequences has at least; 0: shapes are not fixed */
    int32_t slot; /* of the sampler, for the rows that fill a pass */
    int32_t *zeros; /* [max_tokens]: token ids of the rows that fill a pass */
    int32_t *pages; /* [pages of a context]: the pages of those rows, all the same one */
} step_fixed;

typedef struct step_state {
    step_fixed fixed;
    step_part *parts; /* [n_parts], room for max_sequences: parts of the first batch */
    step_row *rows;   /* [n_rows], room for max_outputs */
    size_t n_parts, n_rows;
    engine_run runs[MACHINE_MAX_RUNS];
    int n_begun, n_ended; /* counters of runs; the difference is in flight */
    int64_t passes_ahead; /* passes in flight */
    machine_choice choice;
    bool chooses;        /* this call chooses tokens; if not, the last rows of logits are computed
                          * all the same, even without a receiver */
    bool likes;          /* a sequence of the call sets `like` */
    qp_status refused;   /* what a callback of on_token() has ended the call with */
    bool reads_hidden;   /* hidden states are read after the current run */
    bool hidden_apart;   /* hidden states of this call are no rows of logits: step_hidden.c */
    int32_t *tokens;     /* [MACHINE_MAX_RUNS][STEP_MAX_PASSES][max_outputs] */
    sampler_slot *slots; /* [max_sequences] */
    int32_t *logit_rows; /* [n_logit_rows]: rows of continuing sequences that receive logits */
    int64_t n_logit_rows;
    void *scratch;        /* a row of the vocabulary, 4 bytes each */
    pick_room picks;      /* for sampler_pick() */
    float *hidden;        /* x_out, float32 [n_wanted][hidden_size]; NULL until first read */
    int32_t *hidden_rows; /* [n_hidden], room for max_tokens: rows of the batch, if hidden_apart */
    int64_t n_hidden;
} step_state;

qp_status step_init(step_state *state, const program *program, qp_error *error);
void step_free(step_state *state);

/* qp_step() for sequences that have this library's struct size. */
qp_status step_sequences(struct qp_engine *engine, qp_sequence *sequences, size_t n_sequences,
                         qp_error *error);

/* Makes the bits of all further passes independent of what else is in them. The program has room
 * for max_sessions + 1 sequences, and its last page is not in the pool. */
qp_status step_fix_shapes(struct qp_engine *engine, qp_error *error);

/* Ends all passes in flight. Their tokens are lost and will be computed again. */
void step_drop(struct qp_engine *engine);
