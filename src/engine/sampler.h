/* How the tokens of one sequence are chosen: see qp_sampler in quipu.h.
 *
 * Machines choose tokens, in the plan's steps "adjust_logits" and "sample". A sampler gives them
 * the parameters: settings in a row of the batch; and in a slot of the machine's memory the
 * sequence's history of tokens, its biases and its mask. When a slot does not match the session,
 * its contents are computed again from the session's tokens.
 */
#pragma once

#include "engine/owner.h"
#include "quipu.h"
#include "vm/batch.h"
#include "vm/machine.h"

struct qp_sampler {
    engine_object object;
    struct qp_engine *engine;
    uint64_t id; /* unique among the samplers of an engine */
    double value[QP_SETTING_COUNT];
    qp_logit_bias *biases; /* [n_biases] */
    size_t n_biases;
    int32_t stops[QP_MAX_STOP_TOKENS];
    size_t n_stops;
    uint32_t *allowed; /* [words of the vocabulary]; NULL: all tokens */
    uint64_t masks;    /* number of the mask: counts the masks that were set */
    char **breakers;   /* [n_breakers] of DRY */
    size_t n_breakers;
    struct {
        int32_t *tokens; /* [n] of [context + 1], that were looked at; NULL: no breakers */
        size_t n, end;   /* the last breaker ends before token `end`; 0: there is none */
        bool last[256];  /* the bytes that breakers end with */
    } broken;
    double mu; /* of mirostat: the surprise that is allowed, in bits */
    bool begun;
    size_t answer; /* position in the session where the answer begins; valid once it has begun */
};

/* Room for one choice of sampler_pick(), allocated when the first is made. */
typedef struct pick_room {
    struct pick_candidate *candidates; /* [vocab_size] */
    int32_t *counts;                   /* [vocab_size] */
    int32_t *text;                     /* [2 * (context + 1)]: tokens, and scratch */
} pick_room;

/* What a slot of the machine's memory contains. */
typedef struct sampler_slot {
    uint64_t sampler, mask; /* 0: none */
    int64_t counted; /* number of the session's tokens that are in the history; -1: unknown */
} sampler_slot;

/* Whether a token other than the likeliest of the unchanged logits may be chosen. */
bool sampler_chooses(const qp_sampler *sampler);

/* Whether tokens are chosen by sampler_pick(), from logits on the CPU. */
bool sampler_picks(const qp_sampler *sampler);

/* Chooses the next token, for `position`, from a row of logits, float32 [vocab_size], after the
 * session's tokens and, if it is not negative, `last`. */
qp_status sampler_pick(qp_sampler *sampler, const float *logits, const int32_t *held, size_t n_held,
                       int32_t last, int32_t *token, qp_error *error);

/* Replaces the biases; they hold from the next token on. */
qp_status sampler_set_biases(struct qp_engine *engine, qp_sampler *sampler,
                             const qp_logit_bias *biases, size_t n, qp_error *error);

/* Writes the settings of output `row` of the batch, whose state is in `slot`, for the token at
 * `position` of its sequence. */
void sampler_set_row(const qp_sampler *sampler, batch *batch, int64_t row, int32_t slot,
                     size_t position);

/* A sequence's tokens after a pass that reads the last of them. */
typedef struct sampler_history {
    const int32_t *held, *more; /* [n_held] of the session, then [n_more] new ones */
    size_t n_held, n_more;
    bool shared; /* rows of proposed tokens read the slot too, so the pass must not change it */
} sampler_history;

/* Updates the slot for output `row` of the batch, which `machine` is about to run. If the history
 * lacks only the token that the pass reads, the pass itself counts it, if it may. `scratch`: room
 * for a row of the vocabulary, 4 bytes each. */
qp_status sampler_prepare(const qp_sampler *sampler, sampler_slot *state,
                          const sampler_history *history, const machine *machine, batch *batch,
                          int64_t row, void *scratch, qp_error *error);
