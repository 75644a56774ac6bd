/* Adapters of requests: which ones a request asks for, and those that hold where it asks for none.
 *
 * A request has the adapters of its field "lora" (llama.cpp: numbers and scales), or the one whose
 * name is its "model" (vLLM), its "lora_path" (SGLang) or its "adapter_id"; else those that were
 * given to POST /lora-adapters, at first those that the server began with.
 */
#pragma once

#include "server/call.h"

/* After the engine was opened. */
void lora_begin(server *server);

/* The adapter's name; its number, -1: there is none of that name. */
const char *lora_name(const server *server, int64_t adapter);
int64_t lora_find(const server *server, const char *name);

/* The adapters of a call. */
qp_status lora_choose(const call *c, session_adapters *out, api_error *error);

/* What replies call the model: the adapter that the call has named, or the server's model. */
const char *lora_model(const call *c);

/* GET and POST /lora-adapters. */
qp_status answer_adapters(call *c, api_error *error);
qp_status answer_set_adapters(call *c, api_error *error);
