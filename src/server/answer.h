/* One answer of a call: see call.h. */
#ifndef QUIPU_SERVER_ANSWER_H
#define QUIPU_SERVER_ANSWER_H

#include "server/call.h"

/* A token has come, or the last event. What is certain of the text goes to the dialect. */
void answer_add_token(answer *a, request *r, const token_event *event);
void answer_end(answer *a, request *r, const token_event *event);

#endif
