/* Endpoints of the server's own, under the names that llama.cpp's server gave them. */
#pragma once

#include "server/call.h"

void reply_health(server *s, exchange *x);
void reply_ready(server *s, exchange *x);
void reply_model_info(server *s, exchange *x);
void reply_server_info(server *s, exchange *x);
void reply_models(server *s, exchange *x);
void reply_model(server *s, exchange *x);
void reply_tokenizer_info(server *s, exchange *x);
void reply_props(server *s, exchange *x);

extern const field *const tokenize_tables[], *const detokenize_tables[], *const template_tables[];
qp_status answer_tokenize(call *c, api_error *error);
qp_status answer_detokenize(call *c, api_error *error);
qp_status answer_template(call *c, api_error *error);
