/* The endpoints of OpenAI's API. */
#ifndef QUIPU_SERVER_API_OPENAI_H
#define QUIPU_SERVER_API_OPENAI_H

#include "server/call.h"

extern const dialect openai_chat, openai_completions, openai_responses;

#endif
