/* Errors for clients: an HTTP status, and a body in the form of the client's API.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

typedef struct api_error {
    int status;                 /* of HTTP */
    const char *code;           /* "context_length_exceeded"; NULL: none */
    char param[64];             /* the field that is wrong; may be empty */
    size_t n_prompt, n_context; /* of a prompt that is too long; 0: of no prompt */
    qp_error error;             /* its message */
} api_error;

/* Which form the body has. */
typedef enum api_style {
    API_OPENAI,    /* {"error": {"message", "type", "param", "code"}}; of a prompt that is too long
                    * also "n_prompt_tokens" and "n_ctx", as llama.cpp's server has them */
    API_ANTHROPIC, /* {"type": "error", "error": {"type", "message"}} */
    API_OLLAMA,    /* {"error": "message"} */
    API_LLAMA_CPP, /* as API_OPENAI, but a prompt that is too long has a type of its own */
} api_style;

/* Sets status and message; returns QP_INVALID, so a reader can return the call's result. `param`
 * may be NULL. */
qp_status api_refuse(api_error *e, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for a failure of the library, whose message is in e->error: an error in the request
 * is 400, a full queue 429, the rest 500. */
qp_status api_failed(api_error *e, qp_status status);

/* The body, on one line, appended. */
void api_error_body(const api_error *e, api_style style, strbuf *out);
