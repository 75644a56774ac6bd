/* GET /engine, /slots and /timeline: see endpoints.h. */
#include "server/endpoints.h"

#include "engine/engine.h"
#include "server/process.h"
#include "server/server_state.h"
#include "server/statistics.h"
#include "text/json_string.h"

static void put_sequence(const sequence_stats *q, strbuf *out)
{
    json_put(out,
             "{'id':%i,'choice':%z,'state':%q,'prompt_tokens':%z,'cached_tokens':%z,'positions':%z,"
             "'generated':%z,'max_tokens':%z,'pages':%z,'node':%i}",
             (int64_t)q->id, q->choice, sequence_state_name(q->state), q->prompt_tokens,
             q->cached_tokens, q->positions, q->generated, q->max_tokens, q->pages, q->node);
}

static void put_numbers(const batcher_stats *s, strbuf *out)
{
    json_put(out,
             ",'pages':{'size':%z,'total':%z,'used':%z,'cached':%z},"
             "'queue':{'waiting':%z,'running':%z}",
             s->page_size, s->pages_total, s->pages_used, s->pages_cached, s->waiting, s->running);
    json_put(out,
             ",'totals':{'requests':%i,'prompt_tokens':%i,'cached_tokens':%i,"
             "'generated_tokens':%i,'proposed_tokens':%i,'accepted_tokens':%i,'preemptions':%i,"
             "'cancelled':%i,'last_ttft_ms':%g}",
             (int64_t)s->requests, (int64_t)s->prompt_tokens, (int64_t)s->cached_tokens,
             (int64_t)s->generated_tokens, (int64_t)s->proposed_tokens, (int64_t)s->accepted_tokens,
             (int64_t)s->preemptions, (int64_t)s->finished[QP_FINISH_CANCELLED],
             s->last_first_token * 1e3);
}

static void put_lists(const batcher_stats *stats, strbuf *out)
{
    json_put(out, ",'sequences':[");
    for (size_t i = 0; i < stats->n_sequences; i++) {
        if (i) strbuf_putc(out, ',');
        put_sequence(&stats->sequences[i], out);
    }
    json_put(out, "],'tree':[");
    for (size_t i = 0; i < stats->n_tree; i++) {
        const tree_stats *n = &stats->tree[i];
        json_put(out, "%s{'id':%i,'parent':%i,'tokens':%z,'pages':%z,'users':%z}", i ? "," : "",
                 n->id, n->parent, n->tokens, n->pages, n->users);
    }
    json_put(out, "],'passes':[");
    for (size_t i = 0; i < stats->n_recent; i++) {
        const pass_stats *p = &stats->recent[i];
        json_put(out, "%s{'ms':%g,'prompt_tokens':%z,'decode_tokens':%z,'sequences':%z}",
                 i ? "," : "", p->milliseconds, p->prompt_tokens, p->decode_tokens, p->sequences);
    }
    strbuf_putc(out, ']');
}

static void put_engine(const call *c, const batcher_stats *stats, strbuf *out)
{
    const server *s = c->server;
    json_put(out, "{'model':%q,'device':%q,'slots':%z,'time':%g", s->options->alias, s->info.device,
             stats->slots, (double)stats->time * 1e-9);
    json_put(out, ",'context':%i,'memory':{'weights':%i,'kv_cache':%i,'process':%g}",
             s->info.context, (int64_t)s->info.weight_bytes,
             (int64_t)(machine_page_bytes(&s->engine->program) * stats->pages_total),
             process_measure().resident_bytes);
    put_numbers(stats, out);
    put_lists(stats, out);
    strbuf_putc(out, '}');
}

static void put_load(const call *c, const batcher_stats *stats, strbuf *out)
{
    (void)c;
    json_put(out, "{'server_load':%z}", stats->n_sequences);
}

/* One entry a slot, as llama.cpp's server has it. */
static void put_slots(const call *c, const batcher_stats *stats, strbuf *out)
{
    strbuf_putc(out, '[');
    for (size_t i = 0; i < stats->slots; i++) {
        const sequence_stats *found = NULL;
        for (size_t q = 0; q < stats->n_sequences; q++)
            if (stats->sequences[q].slot == (int)i) found = &stats->sequences[q];
        json_put(out, "%s{'id':%z,'n_ctx':%i,'is_processing':%b", i ? "," : "", i,
                 (int64_t)c->server->info.context, found != NULL);
        if (found) json_put(out, ",'sequence':");
        if (found) put_sequence(found, out);
        strbuf_putc(out, '}');
    }
    strbuf_putc(out, ']');
}

/* The reply is what the function writes of the batcher's numbers. */
static qp_status put_stats(call *c, void (*put)(const call *, const batcher_stats *, strbuf *),
                           api_error *error)
{
    batcher_stats stats;
    const qp_status status = batcher_snapshot(c->server->batcher, &stats, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    put(c, &stats, &c->out);
    batcher_stats_free(&stats);
    return QP_OK;
}

qp_status answer_engine(call *c, api_error *error)
{
    return put_stats(c, put_engine, error);
}

qp_status answer_load(call *c, api_error *error)
{
    return put_stats(c, put_load, error);
}

qp_status answer_slots(call *c, api_error *error)
{
    return put_stats(c, put_slots, error);
}

static qp_status put_timeline(call *c, qp_trace_form form, api_error *error)
{
    char *text;
    size_t length;
    qp_status status = batcher_trace(c->server->batcher, form, &text, &length, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    strbuf_append(&c->out, text, length);
    qp_free(text);
    exchange_add_header(c->exchange, "Content-Security-Policy: default-src 'none'; "
                                     "style-src 'unsafe-inline'; script-src 'unsafe-inline'");
    return QP_OK;
}

qp_status answer_timeline(call *c, api_error *error)
{
    return put_timeline(c, QP_TRACE_SVG, error);
}

/* Where no pass runs, a page that says so and asks again. */
qp_status answer_timeline_page(call *c, api_error *error)
{
    if (put_timeline(c, QP_TRACE_HTML, error) == QP_OK) return QP_OK;
    strbuf_clear(&c->out);
    strbuf_puts(&c->out,
                "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
                "content=\"width=device-width\"><meta http-equiv=\"refresh\" content=\"2\">"
                "<title>quipu</title><p>Nothing to see yet: ");
    for (const char *at = error->error.message; *at; at++)
        strbuf_puts(&c->out, *at == '<' ? "&lt;" : *at == '&' ? "&amp;" : (char[]){*at, '\0'});
    strbuf_puts(&c->out, ".<p>This page asks again every two seconds.</html>\n");
    *error = (api_error){0};
    return QP_OK;
}
