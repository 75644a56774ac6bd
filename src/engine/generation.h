/* One answer while it is made: tokens to text, and its end. See qp_generate_together() in quipu.h.
 *
 * generation_open(), then qp_step() with generation_sequence() until it no longer goes on,
 * generation_close().
 */
#ifndef QUIPU_ENGINE_GENERATION_H
#define QUIPU_ENGINE_GENERATION_H

#include "engine/engine.h"
#include "engine/stop_text.h"

typedef struct generation {
    qp_session *session;
    qp_generate_options options;
    qp_sampling sampling;      /* that the options name */
    qp_generate_result result, /* so far */
        *wanted;               /* where the caller wants it; may be NULL */
    qp_sampler *sampler;
    tokenizer_decoder decoder; /* tokenizer NULL: the model has no vocabulary */
    stop_text stop;
    uint64_t opened, begun; /* when, in ns; begun 0: no token has been chosen yet */
    size_t read;            /* tokens of the prompt that were read */
    int32_t last;           /* the token handed out last, which the session is to read next */
    qp_status taken;        /* what became of that one */
    bool goes_on;           /* it did not end the answer */
    qp_error *error;
} generation;

/* Checks the options. generation_close() it, also after a failure. */
qp_status generation_open(generation *g, qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error);

/* What the next call of qp_step() is given: the rest of the prompt, or the last token. `like`: the
 * sequence of an answer that reads the same prompt for it; NULL: none. */
qp_sequence generation_sequence(generation *g, const qp_sequence *like);

/* What came of the call. */
void generation_take(generation *g, const qp_sequence *sequence);

bool generation_is_cancelled(const generation *g);

/* Ends it, as its result says then; `status`: of making tokens. */
qp_status generation_close(generation *g, qp_status status);

#endif
