/* Parts of replies: see api_parts.h. */
#include "server/api_parts.h"

#include "base/clock.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <string.h>

void put_logprob(strbuf *out, float logprob)
{
    strbuf_printf(out, "%.9g", logprob > -9999 ? (double)logprob : -9999.0);
}

void put_openai_head(const call *c, const char *prefix, const char *object, strbuf *out)
{
    json_put(
        out,
        "{'id':'%s-%s','object':%q,'created':%i,'model':%q,'system_fingerprint':'quipu-" QP_VERSION
        "'",
        prefix, c->id, object, (int64_t)c->created, lora_model(c));
}

void put_openai_usage(const call *c, strbuf *out)
{
    call_usage sum = call_sum_usage(c);
    json_put(out,
             ",'usage':{'prompt_tokens':%z,'completion_tokens':%z,'total_tokens':%z,"
             "'prompt_tokens_details':{'cached_tokens':%z},"
             "'completion_tokens_details':{'reasoning_tokens':%z}}",
             sum.prompt, sum.completion, sum.prompt + sum.completion, sum.cached, sum.thinking);
}

void end_openai_stream(call *c, const char *prefix, const char *object)
{
    if (c->p.include_usage) {
        strbuf_puts(&c->out, "data: ");
        put_openai_head(c, prefix, object, &c->out);
        json_put(&c->out, ",'choices':[]");
        put_openai_usage(c, &c->out);
        if (c->p.timings) put_timings(c, &c->answers[0], true, &c->out);
        strbuf_puts(&c->out, "}\n\n");
    }
    strbuf_puts(&c->out, "data: [DONE]\n\n");
}

static const field stream_fields[] = {FIELD("include_usage", BOOLEAN(include_usage),
                                            .help = "a last chunk has the usage, and no choices"),
                                      {0}};
const field *const openai_stream_tables[] = {stream_fields, NULL};

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

static void put_note(const call *c, int32_t token, float logprob, bool ids, strbuf *out)
{
    size_t length = 0;
    const char *piece = qp_token_piece(c->server->vocabulary, token, &length);
    strbuf_putc(out, '{');
    if (ids) json_put(out, "'id':%d,", (int)token);
    json_put(out, "'token':%Q,'logprob':", piece ? piece : "", length);
    put_logprob(out, logprob);
    json_put(out, ",'bytes':[");
    for (size_t i = 0; i < length; i++)
        strbuf_printf(out, "%s%u", i ? "," : "", (unsigned char)piece[i]);
    strbuf_putc(out, ']');
}

void put_notes(const call *c, answer *a, size_t end, bool ids, strbuf *out)
{
    strbuf_putc(out, '[');
    for (bool first = true; a->noted < end; a->noted++, first = false) {
        const token_note *note = &a->notes[a->noted];
        if (!first) strbuf_putc(out, ',');
        put_note(c, note->token, note->logprob, ids, out);
        json_put(out, ",'top_logprobs':[");
        for (uint32_t i = 0; i < note->n_tops; i++) {
            const token_top *top = &a->tops[note->tops + i];
            if (i) strbuf_putc(out, ',');
            put_note(c, top->token, top->logprob, ids, out);
            strbuf_putc(out, '}');
        }
        strbuf_puts(out, "]}");
    }
    strbuf_putc(out, ']');
}

size_t notes_handed(const answer *a)
{
    const qp_text_stream *s = a->stream;
    const size_t handed = s->certain - (s->rest.length - s->handed);
    size_t count = a->noted;
    while (count < a->n_notes && a->notes[count].offset < handed)
        count++;
    return count;
}

/* Milliseconds from one time to another; 0 if one of them never came. */
static double span_ms(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) * 1e-6 : 0;
}

static double share(double value, double of)
{
    return of > 0 ? value / of : 0;
}

/* How many tokens were found in the cache, read and made, and the milliseconds of both. */
typedef struct timings {
    size_t cached, read, made;
    double reading, making;
} timings;

/* The first token comes with the prompt's last pass, so the others alone count for the rate. */
static void put_times(timings t, strbuf *out)
{
    const double read = (double)t.read, later = t.made ? (double)(t.made - 1) : 0;
    json_put(out,
             ",'timings':{'cache_n':%z,'prompt_n':%z,'prompt_ms':%g,'prompt_per_token_ms':%g,"
             "'prompt_per_second':%g,'predicted_n':%z,'predicted_ms':%g,"
             "'predicted_per_token_ms':%g,'predicted_per_second':%g}",
             t.cached, t.read, t.reading, share(t.reading, read), share(1e3 * read, t.reading),
             t.made, t.making, share(t.making, later), share(1e3 * later, t.making));
}

/* In a stream the engine thread may still have other answers of the request to end. */
void put_timings(const call *c, const answer *a, bool last, strbuf *out)
{
    const request *r = c->prompts[a->prompt].request;
    const uint64_t end = last ? clock_ns() : r->finished;
    put_times((timings){.cached = r->cached_tokens,
                        .read = r->n_prompt - r->cached_tokens,
                        .made = a->n_tokens,
                        .reading = span_ms(r->admitted, r->first_token ? r->first_token : end),
                        .making = span_ms(r->first_token, end)},
              out);
}

/* Milliseconds since the prompt was begun; 0 before any of it is read. */
static double reading_ms(const request *r, size_t read)
{
    return read > r->cached_tokens ? span_ms(r->admitted, clock_ns()) : 0;
}

void put_prompt_timings(const call *c, const answer *a, size_t read, strbuf *out)
{
    const request *r = c->prompts[a->prompt].request;
    put_times((timings){.cached = r->cached_tokens,
                        .read = read - r->cached_tokens,
                        .reading = reading_ms(r, read)},
              out);
}

void put_progress(const call *c, const answer *a, size_t read, strbuf *out)
{
    const request *r = c->prompts[a->prompt].request;
    strbuf_printf(out,
                  ",\"prompt_progress\":{\"total\":%zu,\"cache\":%zu,\"processed\":%zu,"
                  "\"time_ms\":%.0f}",
                  r->n_prompt, r->cached_tokens, read, reading_ms(r, read));
}

void fail_openai(call *c, const api_error *error)
{
    strbuf_puts(&c->out, "data: ");
    api_error_body(error, API_OPENAI, &c->out);
    strbuf_puts(&c->out, "\n\n");
}
