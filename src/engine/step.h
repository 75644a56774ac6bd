/* What the engine keeps from one call of qp_step() to the next: see step.c. */
#ifndef QUIPU_ENGINE_STEP_H
#define QUIPU_ENGINE_STEP_H

#include "base/buffer.h"
#include "engine/run.h"
#include "engine/sampler.h"

enum { STEP_MAX_PASSES = 16 }; /* of a run */

/* New tokens of a sequence that are in the batch. */
typedef struct step_part {
    qp_sequence *of;
    size_t count;
    bool ends; /* the sequence has no more */
    int64_t first_output, n_outputs;
} step_part;

/* A row of logits of the batch, and whose next token is chosen from it. */
typedef struct step_row {
    qp_sequence *of;           /* in the call at hand; NULL: none */
    bool wanted;               /* it wants more tokens */
    uint64_t session, sampler; /* their ids; 0: no token is chosen */
    int32_t slot;
    int32_t last; /* the token that was chosen last, if `going` */
    bool going;   /* else the row comes after new tokens of a part */
    size_t held;  /* tokens of the session when the call before ended */
} step_row;

typedef struct step_state {
    step_part *parts; /* [n_parts] of max_sequences: of the batch that is run first */
    step_row *rows;   /* [n_rows] of max_outputs */
    size_t n_parts, n_rows;
    engine_run runs[MACHINE_MAX_RUNS];
    int n_begun, n_ended; /* runs; those between them are under way */
    int64_t passes_ahead; /* under way */
    machine_choice choice;
    bool chooses;      /* the call at hand chooses tokens; else last rows of logits are computed as
                        * they always are, though nobody may receive them */
    bool likes;        /* a sequence of the call is like another */
    bool reads_hidden; /* hidden states are read after the run at hand */
    int32_t *tokens;   /* [MACHINE_MAX_RUNS][STEP_MAX_PASSES][max_outputs] */
    sampler_slot *slots; /* [max_sequences] */
    void *scratch;       /* a row of the vocabulary, 4 bytes each */
    float *hidden;       /* [max_outputs][hidden_size]; NULL: none were read yet */
} step_state;

qp_status step_init(step_state *state, const program *program, qp_error *error);
void step_free(step_state *state);

/* qp_step() for sequences of this library's size. */
qp_status step_sequences(struct qp_engine *engine, qp_sequence *sequences, size_t n_sequences,
                         qp_error *error);

/* Ends what is under way; its tokens are lost, and will be made again. */
void step_drop(struct qp_engine *engine);

#endif
