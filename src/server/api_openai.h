/* The endpoints of OpenAI's API. */
#ifndef QUIPU_SERVER_API_OPENAI_H
#define QUIPU_SERVER_API_OPENAI_H

#include "server/call.h"

extern const dialect openai_chat, openai_completions, openai_responses;

/* How many tokens such a request would give the model. */
extern const field *const openai_chat_tables[];
qp_status answer_chat_length(call *c, cJSON **out, api_error *error);

#endif
