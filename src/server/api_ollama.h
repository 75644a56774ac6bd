/* The endpoints of Ollama's API. */
#pragma once

#include "server/call.h"

extern const dialect ollama_chat, ollama_generate;

void reply_ollama_version(server *s, exchange *x);
void reply_ollama_tags(server *s, exchange *x);
void reply_ollama_ps(server *s, exchange *x);

extern const field *const ollama_show_tables[];
qp_status answer_ollama_show(call *c, api_error *error);
