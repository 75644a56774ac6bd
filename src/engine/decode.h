/* Decoding of sessions side by side, a token of each a pass: what qp_decode() and
 * qp_generate_together() are made of.
 */
#ifndef QUIPU_ENGINE_DECODE_H
#define QUIPU_ENGINE_DECODE_H

#include "engine/sampler.h"

typedef struct decoding {
    qp_engine *engine;
    qp_session *const *sessions; /* [n_sessions] */
    sampler *const *samplers;    /* [n_sessions]: which choose; NULL: the likeliest tokens */
    size_t n_sessions, count;    /* passes */
} decoding;

/* How many passes at a time lose nothing, if tokens may come late. */
int64_t decode_passes(const decoding *decoding);

/* As qp_decode() has it, but that the tokens are those that samplers pick from the same logits. A
 * GPU chooses them itself unless a sampler changes logits before. Samplers that do count what was
 * chosen. */
qp_status decode(const decoding *decoding, int32_t *tokens, const volatile int *cancel,
                 qp_error *error);

#endif
