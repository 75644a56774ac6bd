/* How the tokens of one sequence are chosen: see qp_sampler in quipu.h.
 *
 * Machines choose, by the plan's steps "adjust_logits" and "sample". A sampler says how: settings
 * in a row of the batch, and what its sequence has had, its biases and its mask in a slot of the
 * machine's memory. What is in the slot is found again from the session's tokens whenever it is out
 * of step with them.
 */
#ifndef QUIPU_ENGINE_SAMPLER_H
#define QUIPU_ENGINE_SAMPLER_H

#include "quipu.h"
#include "vm/batch.h"
#include "vm/machine.h"

struct qp_sampler {
    const program *program;
    uint64_t id; /* no two samplers of an engine have the same */
    double value[QP_SETTING_COUNT];
    qp_logit_bias *biases; /* [n_biases] */
    size_t n_biases;
    int32_t stops[QP_MAX_STOP_TOKENS];
    size_t n_stops;
    uint32_t *allowed; /* [words of the vocabulary]; NULL: all tokens */
    uint64_t masks;    /* how many masks there were: which one it is */
    bool begun;
    size_t answer; /* where in the session the answer begins; once begun */
};

/* What the machine's memory has of a slot. */
typedef struct sampler_slot {
    uint64_t sampler, mask; /* 0: none */
    int64_t counted;        /* tokens of the session that the history has; -1: it is out of step */
} sampler_slot;

/* Whether another token than the likeliest of the logits as they are may be chosen; and what is
 * done to them before: bits of op/adjust_logits. */
bool sampler_chooses(const qp_sampler *sampler);
int32_t sampler_uses(const qp_sampler *sampler);

/* The settings of output `row` of the batch, whose state lies in `slot`, for the token at
 * `position` of its sequence. */
void sampler_set_row(const qp_sampler *sampler, batch *batch, int64_t row, int32_t slot,
                     size_t position);

/* A sequence's tokens after a pass that reads the last of them. */
typedef struct sampler_history {
    const int32_t *held, *more; /* [n_held] of the session, then [n_more] new ones */
    size_t n_held, n_more;
} sampler_history;

/* Brings the slot in step for output `row` of the batch, which `machine` is about to run: where its
 * history lacks nothing but the token that the pass reads, the pass counts it. `scratch`: room for
 * a row of the vocabulary, 4 bytes each. */
qp_status sampler_prepare(const qp_sampler *sampler, sampler_slot *state,
                          const sampler_history *history, const machine *machine, batch *batch,
                          int64_t row, void *scratch, qp_error *error);

#endif
