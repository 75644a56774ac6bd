/* The endpoints of OpenAI's API. */
#pragma once

#include "server/call.h"

extern const dialect openai_chat, openai_completions, openai_responses;

/* How many tokens such a request would give the model. */
extern const field *const openai_chat_tables[];
qp_status answer_chat_length(call *c, api_error *error);

/* A response that is kept, or with "/input_items" in the path what it was made from; deletes one;
 * how many tokens a request would give the model. */
extern const field *const openai_response_tables[];
qp_status answer_response(call *c, api_error *error);
qp_status answer_response_deleted(call *c, api_error *error);
qp_status answer_response_length(call *c, api_error *error);
