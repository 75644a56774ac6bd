/* Parts of replies that several dialects write. */
#pragma once

#include "server/call.h"

/* A log-probability. JSON has no minus infinity, so -9999 is written instead. */
void put_logprob(strbuf *out, float logprob);

/* The first members of a reply, or of a chunk, after "{": PREFIX-id, the object's name, the model.
 */
void put_openai_head(const call *c, const char *prefix, const char *object, strbuf *out);

/* ,"usage":{...} with cached tokens. */
void put_openai_usage(const call *c, strbuf *out);

/* The end of a stream: a chunk with the usage, if it is wanted, and [DONE]. */
void end_openai_stream(call *c, const char *prefix, const char *object);

/* Of the field "stream_options". */
extern const field *const openai_stream_tables[];

/* ,"NAME":[...]: the ids of an answer's tokens from the `from`-th on. */
void put_ids(const answer *a, const char *name, size_t from, strbuf *out);

/* ,"timings":{...} of an answer, as llama.cpp has them; `last`: it ends now, in a stream. */
void put_timings(const call *c, const answer *a, bool last, strbuf *out);

/* The same while the prompt is read: `read` of its tokens are. */
void put_prompt_timings(const call *c, const answer *a, size_t read, strbuf *out);

/* ,"prompt_progress":{...} as llama.cpp has it. */
void put_progress(const call *c, const answer *a, size_t read, strbuf *out);

/* [{"token", "logprob", "bytes", "top_logprobs"}, ...] of the notes up to `end`, from the first
 * that was not handed out; `ids`: each with "id" first. */
void put_notes(const call *c, answer *a, size_t end, bool ids, strbuf *out);

/* ,"token_ids":[...] from the `from`-th on, where the client wants them. */
void put_token_ids(const call *c, const answer *a, size_t from, strbuf *out);

/* How many of the answer's notes are of tokens whose text begins in what was handed out. */
size_t notes_handed(const answer *a);

/* A failure after a stream has begun: data: {"error": ...}. */
void fail_openai(call *c, const api_error *error);
