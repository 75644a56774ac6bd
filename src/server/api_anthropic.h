/* The endpoints of Anthropic's API. */
#pragma once

#include "server/call.h"

extern const dialect anthropic_messages;

extern const field *const count_tokens_tables[];
qp_status answer_count_tokens(call *c, api_error *error);
