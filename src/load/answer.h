/* Reads the events of an answer, of a chat or a completion: text, usage, an error, the end. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise for a new answer. */
typedef struct answer {
    bool text;      /* the last event carried a token, perhaps one with empty text */
    bool finished;  /* a finish_reason was received */
    bool done;      /* [DONE] was received */
    bool has_usage; /* the server reported the three numbers below */
    uint32_t input_tokens, output_tokens, cached_tokens;
} answer;

/* Reads the data of one event. QP_FORMAT: it is not JSON, or not of this API. QP_INVALID: it is
 * {"error": ...}; the message is the server's. */
qp_status answer_read(answer *answer, const char *data, size_t length, qp_error *error);

/* The message of an error's body: that of {"error": {"message": ...}} in the forms that servers
 * use, else the beginning of the text. */
qp_status answer_refused(int status, const char *body, size_t length, qp_error *error);
