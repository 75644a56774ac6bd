/* One answer of a call: see call.h. */
#pragma once

#include "server/call.h"

/* Prepares the reading of tokens; answer_free() the answer, also after a failure. */
qp_status answer_open(answer *a, qp_error *error);
void answer_free(answer *a);

/* Handles a token or the last event, and gives the certain part of the text to the dialect. */
void answer_add_token(answer *a, request *r, const token_event *event);
void answer_end(answer *a, request *r, const token_event *event);
