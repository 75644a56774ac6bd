/* One answer while it is made: what qp_generate() and qp_generate_together() share.
 *
 * generation_open(), the prompt's evaluation, generation_begin(), then tokens handed out one by one
 * until it no longer goes on, generation_close().
 */
#ifndef QUIPU_ENGINE_GENERATION_H
#define QUIPU_ENGINE_GENERATION_H

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/stop_text.h"

typedef struct generation {
    qp_session *session;
    const qp_generate_options *options;
    qp_generate_result own, *result; /* the caller's, or its own */
    sampler sampler;
    tokenizer_decoder decoder; /* tokenizer NULL: the model has no vocabulary */
    stop_text stop;
    uint64_t opened, begun; /* when, in ns; begun 0: not yet */
    size_t held;            /* tokens that the session held when the last one handed out was made */
    int32_t last;           /* the last one handed out, which the session is to read next */
    qp_status taken;        /* what became of that one */
    bool goes_on;           /* it did not end the answer */
    qp_error *error;
} generation;

/* Checks the options. generation_close() it, also after a failure. */
qp_status generation_open(generation *g, qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error);

/* Behind the prompt, whose last logits the session has: picks the first token, hands it out. */
void generation_begin(generation *g);

/* Hands out the next token of the answer; whether it goes on. */
bool generation_hand_out(generation *g, int32_t token);

/* How many tokens may be made before one is handed out: as the options say, no more than are
 * wanted and fit. */
int64_t generation_interval(const generation *g, int64_t usual);

bool generation_is_cancelled(const generation *g);

/* Makes tokens, of this answer alone, until it has ended or `status` is not QP_OK. */
qp_status generation_go_on(generation *g);

/* Ends it, as its result says then; `status`: of making tokens. The session forgets what was made
 * past the end. */
qp_status generation_close(generation *g, qp_status status);

/* Keeps logits in the session that is the context; a qp_logits_callback. */
qp_status generation_keep_logits(void *session, size_t input, size_t token, const float *logits);

#endif
