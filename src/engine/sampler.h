/* Picks the next token: bias and penalties here, the rest by the plan's step "sample". */
#ifndef QUIPU_ENGINE_SAMPLER_H
#define QUIPU_ENGINE_SAMPLER_H

#include "engine/engine.h"
#include "quipu.h"

typedef struct sampler {
    qp_engine *engine;
    const qp_sampling *sampling;
    uint32_t *history; /* [vocab_size]: twice a token's times in the answer, plus 1 if it was seen
                        * there or in the prompt */
    float *bias;       /* [vocab_size]: added to the logits; NULL: none */
} sampler;

qp_status sampler_init(sampler *sampler, qp_engine *engine, const qp_sampling *sampling,
                       qp_error *error);
void sampler_free(sampler *sampler);

/* A token of the prompt: repetition_penalty counts it. */
void sampler_see(sampler *sampler, int32_t token);

/* Whether it takes another token than the likeliest of the logits as they are; and whether it
 * changes them, by biases or penalties, before it chooses. */
bool sampler_chooses(const sampler *sampler);
bool sampler_changes(const sampler *sampler);

/* The parts of sampler_pick(), for several sequences at once: what biases and penalties make of a
 * row of logits (vocab_size); its settings as those of row `row` of a batch's outputs, for the
 * token at `position` of its sequence; and that a token was chosen. */
void sampler_change(const sampler *sampler, float *logits);
void sampler_set_row(const sampler *sampler, batch *batch, int64_t row, size_t position);
void sampler_count(sampler *sampler, int32_t token);

/* The token at `position` of its sequence for these logits (vocab_size), which are not changed; it
 * counts as seen. The same seed, position and logits give the same token on every machine. */
int32_t sampler_pick(sampler *sampler, const float *logits, size_t position);

/* What a machine needs to know to choose such tokens itself, of the request and of `penalties`,
 * which it may point to then; the batch has the row's settings already. Logits are to be changed by
 * what the sampler has seen so far. */
void sampler_hand_over(const sampler *sampler, machine_penalties *penalties,
                       machine_request *request);

#endif
