/* What the events of an answer say, in either of OpenAI's forms: text, usage, an error, the end. */
#ifndef QUIPU_LOAD_ANSWER_H
#define QUIPU_LOAD_ANSWER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise for a new answer. */
typedef struct answer {
    bool text;      /* the last event that was read carried a token, even one without text */
    bool finished;  /* a finish_reason has come */
    bool done;      /* [DONE] has come */
    bool has_usage; /* the three numbers below are the server's */
    uint32_t input_tokens, output_tokens, cached_tokens;
} answer;

/* Reads the data of one event. QP_FORMAT for what is not JSON or not of this API, QP_INVALID with
 * the server's own sentence for {"error": ...}. */
qp_status answer_read(answer *answer, const char *data, size_t length, qp_error *error);

/* The sentence of {"error": {"message": ...}}, in the few forms that servers use, else the
 * beginning of the text; for a body that came with an HTTP status. */
qp_status answer_refused(int status, const char *body, size_t length, qp_error *error);

#endif
