/* Picks the next token: bias and penalties here, the rest by the plan's step "sample". */
#ifndef QUIPU_GENERATE_SAMPLER_H
#define QUIPU_GENERATE_SAMPLER_H

#include "generate/engine.h"
#include "quipu.h"

typedef struct sampler {
    qp_engine *engine;
    const qp_sampling *sampling;
    int32_t *counts; /* [vocab_size]: times in the answer */
    bool *seen;      /* [vocab_size]: in the prompt or the answer */
} sampler;

qp_status sampler_init(sampler *sampler, qp_engine *engine, const qp_sampling *sampling,
                       qp_error *error);
void sampler_free(sampler *sampler);

/* A token of the prompt: repetition_penalty counts it. */
void sampler_see(sampler *sampler, int32_t token);

/* The token at `position` of its sequence for these logits (vocab_size), which are not changed; it
 * counts as seen. The same seed, position and logits give the same token on every machine. */
int32_t sampler_pick(sampler *sampler, const float *logits, size_t position);

#endif
