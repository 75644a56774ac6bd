/* What a client is told when a request fails: a status of HTTP, and a body in its API's own form.
 */
#ifndef QUIPU_SERVER_API_ERROR_H
#define QUIPU_SERVER_API_ERROR_H

#include "base/status.h"
#include "base/strbuf.h"

typedef struct api_error {
    int status;       /* of HTTP */
    const char *code; /* "context_length_exceeded"; NULL: none */
    char param[64];   /* the field that is wrong; may be empty */
    qp_error error;   /* its message */
} api_error;

/* Which form the body has. */
typedef enum api_style {
    API_OPENAI,    /* {"error": {"message", "type", "param", "code"}} */
    API_ANTHROPIC, /* {"type": "error", "error": {"type", "message"}} */
    API_OLLAMA,    /* {"error": "message"} */
} api_style;

/* Sets status and message; returns QP_INVALID, so that a reader ends in it. `param` may be NULL. */
qp_status api_refuse(api_error *e, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for a failure of the library, whose message is in e->error: what the client can mend is
 * 400, a full queue 429, the rest 500. */
qp_status api_failed(api_error *e, qp_status status);

/* The body, on one line, appended. */
void api_error_body(const api_error *e, api_style style, strbuf *out);

#endif
