/* GET /engine, /slots and /timeline: see api_state.h. */
#include "server/api_state.h"

#include "server/server_state.h"
#include "server/statistics.h"

static cJSON *describe_sequence(const sequence_stats *q)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddNumberToObject(tree, "id", (double)q->id);
    cJSON_AddNumberToObject(tree, "choice", (double)q->choice);
    cJSON_AddStringToObject(tree, "state", sequence_state_name(q->state));
    cJSON_AddNumberToObject(tree, "prompt_tokens", (double)q->prompt_tokens);
    cJSON_AddNumberToObject(tree, "cached_tokens", (double)q->cached_tokens);
    cJSON_AddNumberToObject(tree, "positions", (double)q->positions);
    cJSON_AddNumberToObject(tree, "generated", (double)q->generated);
    cJSON_AddNumberToObject(tree, "max_tokens", (double)q->max_tokens);
    cJSON_AddNumberToObject(tree, "pages", (double)q->pages);
    cJSON_AddNumberToObject(tree, "node", (double)q->node);
    return tree;
}

static void add_numbers(cJSON *tree, const batcher_stats *stats)
{
    cJSON *pages = cJSON_AddObjectToObject(tree, "pages");
    cJSON_AddNumberToObject(pages, "size", (double)stats->page_size);
    cJSON_AddNumberToObject(pages, "total", (double)stats->pages_total);
    cJSON_AddNumberToObject(pages, "used", (double)stats->pages_used);
    cJSON_AddNumberToObject(pages, "cached", (double)stats->pages_cached);
    cJSON *queue = cJSON_AddObjectToObject(tree, "queue");
    cJSON_AddNumberToObject(queue, "waiting", (double)stats->waiting);
    cJSON_AddNumberToObject(queue, "running", (double)stats->running);
    cJSON *totals = cJSON_AddObjectToObject(tree, "totals");
    cJSON_AddNumberToObject(totals, "requests", (double)stats->requests);
    cJSON_AddNumberToObject(totals, "prompt_tokens", (double)stats->prompt_tokens);
    cJSON_AddNumberToObject(totals, "cached_tokens", (double)stats->cached_tokens);
    cJSON_AddNumberToObject(totals, "generated_tokens", (double)stats->generated_tokens);
    cJSON_AddNumberToObject(totals, "proposed_tokens", (double)stats->proposed_tokens);
    cJSON_AddNumberToObject(totals, "accepted_tokens", (double)stats->accepted_tokens);
    cJSON_AddNumberToObject(totals, "preemptions", (double)stats->preemptions);
    cJSON_AddNumberToObject(totals, "cancelled", (double)stats->finished[QP_FINISH_CANCELLED]);
    cJSON_AddNumberToObject(totals, "last_ttft_ms", stats->last_first_token * 1e3);
}

static void add_lists(cJSON *tree, const batcher_stats *stats)
{
    cJSON *list = cJSON_AddArrayToObject(tree, "sequences");
    for (size_t i = 0; i < stats->n_sequences; i++)
        cJSON_AddItemToArray(list, describe_sequence(&stats->sequences[i]));
    list = cJSON_AddArrayToObject(tree, "tree");
    for (size_t i = 0; i < stats->n_tree; i++) {
        const tree_stats *n = &stats->tree[i];
        cJSON *node = cJSON_CreateObject();
        cJSON_AddNumberToObject(node, "id", (double)n->id);
        cJSON_AddNumberToObject(node, "parent", (double)n->parent);
        cJSON_AddNumberToObject(node, "tokens", (double)n->tokens);
        cJSON_AddNumberToObject(node, "pages", (double)n->pages);
        cJSON_AddNumberToObject(node, "users", (double)n->users);
        cJSON_AddItemToArray(list, node);
    }
    list = cJSON_AddArrayToObject(tree, "passes");
    for (size_t i = 0; i < stats->n_recent; i++) {
        const pass_stats *p = &stats->recent[i];
        cJSON *pass = cJSON_CreateObject();
        cJSON_AddNumberToObject(pass, "ms", p->milliseconds);
        cJSON_AddNumberToObject(pass, "prompt_tokens", (double)p->prompt_tokens);
        cJSON_AddNumberToObject(pass, "decode_tokens", (double)p->decode_tokens);
        cJSON_AddNumberToObject(pass, "sequences", (double)p->sequences);
        cJSON_AddItemToArray(list, pass);
    }
}

qp_status answer_engine(call *c, cJSON **out, api_error *error)
{
    batcher_stats stats;
    qp_status status = batcher_snapshot(c->server->batcher, &stats, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    *out = cJSON_CreateObject();
    cJSON_AddStringToObject(*out, "model", c->server->options->alias);
    cJSON_AddStringToObject(*out, "device", c->server->info.device);
    cJSON_AddNumberToObject(*out, "slots", (double)stats.slots);
    cJSON_AddNumberToObject(*out, "time", (double)stats.time * 1e-9);
    add_numbers(*out, &stats);
    add_lists(*out, &stats);
    batcher_stats_free(&stats);
    return QP_OK;
}

qp_status answer_load(call *c, cJSON **out, api_error *error)
{
    batcher_stats stats;
    qp_status status = batcher_snapshot(c->server->batcher, &stats, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    *out = cJSON_CreateObject();
    cJSON_AddNumberToObject(*out, "server_load", (double)stats.n_sequences);
    batcher_stats_free(&stats);
    return QP_OK;
}

/* One entry a slot, as llama.cpp's server has it. */
qp_status answer_slots(call *c, cJSON **out, api_error *error)
{
    batcher_stats stats;
    qp_status status = batcher_snapshot(c->server->batcher, &stats, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    *out = cJSON_CreateArray();
    for (size_t i = 0; i < stats.slots; i++) {
        cJSON *slot = cJSON_CreateObject();
        const sequence_stats *found = NULL;
        for (size_t q = 0; q < stats.n_sequences; q++) {
            if (stats.sequences[q].slot == (int)i) found = &stats.sequences[q];
        }
        cJSON_AddNumberToObject(slot, "id", (double)i);
        cJSON_AddNumberToObject(slot, "n_ctx", (double)c->server->info.context);
        cJSON_AddBoolToObject(slot, "is_processing", found != NULL);
        if (found) cJSON_AddItemToObject(slot, "sequence", describe_sequence(found));
        cJSON_AddItemToArray(*out, slot);
    }
    batcher_stats_free(&stats);
    return QP_OK;
}

static qp_status put_timeline(call *c, qp_trace_form form, cJSON **out, api_error *error)
{
    char *text;
    size_t length;
    *out = NULL;
    qp_status status = batcher_trace(c->server->batcher, form, &text, &length, &error->error);
    if (status != QP_OK) return api_failed(error, status);
    strbuf_append(&c->out, text, length);
    qp_free(text);
    exchange_add_header(c->exchange, "Content-Security-Policy: default-src 'none'; "
                                     "style-src 'unsafe-inline'; script-src 'unsafe-inline'");
    return QP_OK;
}

qp_status answer_timeline(call *c, cJSON **out, api_error *error)
{
    return put_timeline(c, QP_TRACE_SVG, out, error);
}

/* Where no pass runs, a page that says so and asks again. */
qp_status answer_timeline_page(call *c, cJSON **out, api_error *error)
{
    if (put_timeline(c, QP_TRACE_HTML, out, error) == QP_OK) return QP_OK;
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
