/* What the routes lead to: dialects, which make text, and functions that answer at once. */
#pragma once

#include "server/routes.h"

/* OpenAI's, Anthropic's, Ollama's and llama.cpp's endpoints. */
extern const dialect openai_chat, openai_completions, openai_responses, openai_embeddings;
extern const dialect anthropic_messages;
extern const dialect ollama_chat, ollama_generate, ollama_embed, ollama_embeddings;
extern const dialect llama_cpp_completion, llama_cpp_infill, llama_cpp_embeddings;

/* How near texts are to each other: api_rerank.c. */
extern const dialect rerank, score;

/* Fields of requests whose answer is not a dialect's. */
extern const field *const openai_chat_tables[];
extern const field *const openai_response_tables[];
extern const field *const count_tokens_tables[];
extern const field *const ollama_show_tables[];
extern const field *const tokenize_tables[];
extern const field *const detokenize_tables[];
extern const field *const template_tables[];

/* On the I/O thread. */
route_reply reply_health, reply_ready, reply_models, reply_model, reply_props;
route_reply reply_model_info, reply_server_info, reply_tokenizer_info;
route_reply reply_ollama_version, reply_ollama_tags, reply_ollama_ps;
route_reply reply_openapi; /* from the tables of routes and fields */
route_reply reply_page;    /* GET / and the files that it names: the page of the server */

/* GET of `prefix` without a slash at its end: the page's files are named relative to it, so its
 * address must have one. */
void reply_page_slash(const char *prefix, exchange *x);

/* On a worker: how many tokens a request would give the model; tokens and templates; responses that
 * are kept; the engine as it runs, and its next pass as a picture and as a page. */
route_answer answer_chat_length, answer_response_length, answer_count_tokens;
route_answer answer_tokenize, answer_detokenize, answer_template, answer_ollama_show;
route_answer answer_response, answer_response_deleted;
route_answer answer_engine, answer_load, answer_slots, answer_metrics;
route_answer answer_timeline, answer_timeline_page;

/* Says that vectors are wanted, and refuses those of a kind that the server does not make. */
qp_status embeddings_check(call *c, api_error *error);

/* The answer as llama.cpp's endpoint has it: whole, or with `last` as the last event of its stream,
 * which has no text. */
void put_llama_cpp_result(const call *c, answer *a, bool last, strbuf *out);
