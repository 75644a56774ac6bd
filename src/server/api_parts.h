/* Parts of replies that several dialects write. */
#pragma once

#include "server/call.h"

/* The model's name as a JSON string. */
void put_model(const call *c, strbuf *out);

/* A log-probability. JSON has no minus infinity, so -9999 is written instead. */
void put_logprob(strbuf *out, float logprob);

/* ,"usage":{...} with cached tokens. */
void put_openai_usage(const call *c, strbuf *out);

/* ,"NAME":[...]: the ids of an answer's tokens from the `from`-th on. */
void put_ids(const answer *a, const char *name, size_t from, strbuf *out);

/* ,"timings":{...} of an answer, as llama.cpp has them; `last`: it ends now, in a stream. */
void put_timings(const call *c, const answer *a, bool last, strbuf *out);

/* The same while the prompt is read: `read` of its tokens are. */
void put_prompt_timings(const call *c, const answer *a, size_t read, strbuf *out);

/* ,"prompt_progress":{...} as llama.cpp has it. */
void put_progress(const call *c, const answer *a, size_t read, strbuf *out);

/* "token":...,"logprob":...,"bytes":[...] without braces. */
void put_token_logprob(const call *c, int32_t token, float logprob, strbuf *out);

/* ,"token_ids":[...] from the `from`-th on, where the client wants them. */
void put_token_ids(const call *c, const answer *a, size_t from, strbuf *out);

/* How many of the answer's notes are of tokens whose text begins in what was handed out. */
size_t notes_handed(const answer *a);

/* A failure after a stream has begun: data: {"error": ...}. */
void fail_openai(call *c, const api_error *error);
