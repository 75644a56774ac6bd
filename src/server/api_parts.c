/* Parts of replies: see api_parts.h. */
#include "server/api_parts.h"

#include "server/server_state.h"
#include "text/json_string.h"

#include <string.h>

void put_model(const call *c, strbuf *out)
{
    const char *alias = c->server->options->alias;
    json_put_string(out, alias, strlen(alias));
}

void put_logprob(strbuf *out, float logprob)
{
    strbuf_printf(out, "%.9g", logprob > -9999 ? (double)logprob : -9999.0);
}

void put_openai_usage(const call *c, strbuf *out)
{
    call_usage sum = call_sum_usage(c);
    strbuf_printf(out,
                  ",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,"
                  "\"total_tokens\":%zu,\"prompt_tokens_details\":{\"cached_tokens\":%zu}}",
                  sum.prompt, sum.completion, sum.prompt + sum.completion, sum.cached);
}

void put_ids(const answer *a, const char *name, size_t from, strbuf *out)
{
    strbuf_printf(out, ",\"%s\":[", name);
    for (size_t i = from; i < a->n_ids; i++)
        strbuf_printf(out, i > from ? ",%d" : "%d", (int)a->ids[i]);
    strbuf_putc(out, ']');
}

void put_token_ids(const call *c, const answer *a, size_t from, strbuf *out)
{
    if (c->p.token_ids) put_ids(a, "token_ids", from, out);
}

void put_token_logprob(const call *c, int32_t token, float logprob, strbuf *out)
{
    size_t length = 0;
    const char *piece = qp_token_piece(c->server->vocabulary, token, &length);
    strbuf_puts(out, "\"token\":");
    json_put_string(out, piece ? piece : "", length);
    strbuf_puts(out, ",\"logprob\":");
    put_logprob(out, logprob);
    strbuf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < length; i++)
        strbuf_printf(out, "%s%u", i ? "," : "", (unsigned char)piece[i]);
    strbuf_putc(out, ']');
}

size_t notes_before(const answer *a, size_t offset)
{
    size_t count = a->noted;
    while (count < a->n_notes && a->notes[count].offset < offset)
        count++;
    return count;
}

void fail_openai(call *c, const api_error *error)
{
    strbuf_puts(&c->out, "data: ");
    api_error_body(error, API_OPENAI, &c->out);
    strbuf_puts(&c->out, "\n\n");
}
