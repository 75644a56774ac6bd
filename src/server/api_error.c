/* Errors in the forms of the APIs: see api_error.h. */
#include "server/api_error.h"

#include "text/json_string.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

qp_status api_refuse(api_error *e, int status, const char *param, const char *format, ...)
{
    va_list args;
    e->status = status;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->error.message, sizeof e->error.message, format, args);
    va_end(args);
    return e->error.status = QP_INVALID;
}

qp_status api_failed(api_error *e, qp_status status)
{
    switch (status) {
    case QP_INVALID:
    case QP_FORMAT:
    case QP_UNSUPPORTED:
        e->status = 400;
        break;
    case QP_NO_MEMORY:
        e->status = 429;
        break;
    case QP_CANCELLED:
        e->status = 503;
        break;
    default:
        e->status = 500;
        break;
    }
    return status;
}

/* What OpenAI, Anthropic and llama.cpp call a kind of error. */
static const char *type_name(const api_error *e, api_style style)
{
    if (style == API_LLAMA_CPP && e->n_context) return "exceed_context_size_error";
    switch (e->status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return style == API_ANTHROPIC ? "request_too_large" : "invalid_request_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return style == API_ANTHROPIC ? "overloaded_error" : "unavailable_error";
    case 504:
        return "timeout_error";
    default:
        break;
    }
    if (e->status >= 500) return style == API_ANTHROPIC ? "api_error" : "server_error";
    return "invalid_request_error";
}

static void put_or_null(strbuf *out, const char *text)
{
    if (text && *text)
        json_put_string(out, text, strlen(text));
    else
        strbuf_puts(out, "null");
}

void api_error_body(const api_error *e, api_style style, strbuf *out)
{
    const char *message = e->error.message, *type = type_name(e, style);
    if (style == API_OPENAI || style == API_LLAMA_CPP) {
        strbuf_puts(out, "{\"error\":{\"message\":");
        json_put_string(out, message, strlen(message));
        strbuf_printf(out, ",\"type\":\"%s\",\"param\":", type);
        put_or_null(out, e->param);
        strbuf_puts(out, ",\"code\":");
        if (e->code)
            put_or_null(out, e->code);
        else
            strbuf_printf(out, "%d", e->status);
        if (e->n_context)
            strbuf_printf(out, ",\"n_prompt_tokens\":%zu,\"n_ctx\":%zu", e->n_prompt, e->n_context);
        strbuf_puts(out, "}}");
    } else if (style == API_ANTHROPIC) {
        strbuf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
        json_put_string(out, message, strlen(message));
        strbuf_puts(out, "}}");
    } else {
        strbuf_puts(out, "{\"error\":");
        json_put_string(out, message, strlen(message));
        strbuf_puts(out, "}");
    }
}
