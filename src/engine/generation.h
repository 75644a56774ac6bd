/* One answer during its generation: converts tokens to text, and decides when it ends. See
 * qp_generate_together() in quipu.h.
 *
 * Call generation_open(), then qp_step() with generation_sequence() until the answer ends, then
 * generation_close().
 */
#pragma once

#include "engine/engine.h"
#include "engine/text_stream.h"

typedef struct generation {
    qp_session *session;
    qp_generate_options options;
    qp_sampling sampling;      /* of the options */
    qp_generate_result result, /* so far */
        *wanted;               /* the caller's result; may be NULL */
    qp_sampler *sampler;
    qp_matcher *matcher; /* of the answer's form; NULL: any text */
    qp_text_stream *text;
    uint64_t opened, begun; /* times in ns; begun 0: no token has been chosen yet */
    size_t read;            /* tokens of the prompt that were read */
    int32_t last;           /* the last token passed to the caller, which the session reads next */
    qp_status taken;        /* what that token did */
    bool cancelled;         /* by the caller's on_token() */
    bool goes_on;           /* the answer continues after it */
    qp_error *error;
} generation;

/* Checks the options. generation_close() it, also after a failure. */
qp_status generation_open(generation *g, qp_session *session, const qp_generate_options *options,
                          qp_generate_result *result, qp_error *error);

/* The sequence for the next call of qp_step(): the rest of the prompt, or the last token. `like`:
 * the sequence of an answer that reads the same prompt for this one; NULL: none. */
qp_sequence generation_sequence(generation *g, const qp_sequence *like);

/* Takes the results of the call. */
void generation_take(generation *g, const qp_sequence *sequence);

bool generation_is_cancelled(const generation *g);

/* Ends the answer and fills its result; `status`: of qp_step(). */
qp_status generation_close(generation *g, qp_status status);
