/* The endpoints of Anthropic's API. */
#ifndef QUIPU_SERVER_API_ANTHROPIC_H
#define QUIPU_SERVER_API_ANTHROPIC_H

#include "server/call.h"

extern const dialect anthropic_messages;

extern const field *const count_tokens_tables[];
qp_status answer_count_tokens(call *c, cJSON **out, api_error *error);

#endif
