/* POST /v1/rerank and /v1/score: how near texts are to another, by the cosines of their vectors.
 * See endpoints.h. */
#include "server/endpoints.h"

#include "engine/engine.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const field rerank_fields[] = {
    MODEL_FIELD,
    FIELD("query", TEXT(text), .required = true, .help = "what is looked for"),
    FIELD("documents", TREE(JSON_ARRAY, prompt), .least_items = 1,
          .help = "texts, or objects with a text"),
    FIELD("texts", TREE(JSON_ARRAY, input), .least_items = 1,
          .help = "the same; the reply is a list, as Hugging Face's text-embeddings-inference has "
                  "it"),
    FIELD("top_n", INTEGER(top_n), .high = 1 << 30,
          .help = "how many of the nearest are in the reply; none, or 0: all"),
    FIELD("return_documents", BOOLEAN(echo), .help = "the reply has the texts, too"),
    FIELD("return_text", BOOLEAN(echo), .help = "the same"),
    {0}};

static const field score_fields[] = {
    MODEL_FIELD,
    FIELD("text_1", TREE(JSON_STRING | JSON_ARRAY, input), .required = true,
          .help = "a text, or texts"),
    FIELD("text_2", TREE(JSON_STRING | JSON_ARRAY, prompt), .required = true,
          .help = "a text, or texts: as many as in text_1 where that has several"),
    {0}};

static const field *const rerank_tables[] = {rerank_fields, NULL};
static const field *const score_tables[] = {score_fields, NULL};

/* ---- Requests ------------------------------------------------------------------------------ */

static const char *text_of(const cJSON *item)
{
    return cJSON_GetStringValue(cJSON_IsObject(item) ? json_get(item, "text") : item);
}

static qp_status add_text(call *c, const char *name, const cJSON *item, api_error *error)
{
    const char *text = text_of(item);
    if (text && *text) return call_add_text(c, text, error);
    return api_refuse(error, 400, name, "\"%s\" must be texts, none of them empty, found %s", name,
                      text ? "an empty one" : json_type_name(item));
}

/* A text or a list of texts; returns how many were added. */
static qp_status add_texts(call *c, const char *name, const cJSON *given, size_t *n,
                           api_error *error)
{
    const cJSON *item;
    const size_t before = c->n_prompts;
    if (!cJSON_IsArray(given)) TRY(add_text(c, name, given, error));
    if (cJSON_IsArray(given)) cJSON_ArrayForEach(item, given) TRY(add_text(c, name, item, error));
    *n = c->n_prompts - before;
    return *n ? QP_OK : api_refuse(error, 400, name, "\"%s\" is empty", name);
}

static const cJSON *documents(const call *c)
{
    return c->p.input ? c->p.input : c->p.prompt;
}

static qp_status read_rerank(call *c, const cJSON *body, api_error *error)
{
    size_t n;
    const char *name = c->p.input ? "texts" : "documents";
    (void)body;
    if (!c->p.input == !c->p.prompt)
        return api_refuse(error, 400, "documents",
                          "a request needs \"documents\", or \"texts\" in place of them");
    TRY(embeddings_check(c, error));
    if (!*c->p.text) return api_refuse(error, 400, "query", "\"query\" must not be empty");
    TRY(call_add_text(c, c->p.text, error));
    return add_texts(c, name, documents(c), &n, error);
}

/* c->state: how many texts are the first of a pair. */
static qp_status read_score(call *c, const cJSON *body, api_error *error)
{
    size_t first, second;
    (void)body;
    TRY(embeddings_check(c, error));
    TRY(add_texts(c, "text_1", c->p.input, &first, error));
    TRY(add_texts(c, "text_2", c->p.prompt, &second, error));
    c->state = (int)first;
    if (first > 0 && second > 0 && (first == 1 || first == second)) return QP_OK;
    return api_refuse(error, 400, "text_2",
                      "\"text_1\" has %zu texts and \"text_2\" %zu: the first must have one, or as "
                      "many as the second",
                      first, second);
}

/* ---- Replies ------------------------------------------------------------------------------- */

/* From -1 to 1; 0 if one of the vectors is. */
static double cosine(const call *c, size_t a, size_t b)
{
    const float *x = c->prompts[a].request->embedding, *y = c->prompts[b].request->embedding;
    double dot = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < c->server->engine->program.config.hidden_size; i++) {
        dot += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xx > 0 && yy > 0 ? dot / sqrt(xx * yy) : 0;
}

typedef struct ranked {
    size_t index;
    double score;
} ranked;

static int by_score(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return a->index < b->index ? -1 : 1;
}

static void put_usage(const call *c, strbuf *out)
{
    const size_t tokens = call_sum_usage(c).prompt;
    json_put(out, ",'usage':{'prompt_tokens':%z,'total_tokens':%z}}", tokens, tokens);
}

static void put_result(const call *c, const ranked *r, strbuf *out)
{
    const bool list = c->p.input;
    strbuf_printf(out, "{\"index\":%zu,\"%s\":%.9g", r->index, list ? "score" : "relevance_score",
                  r->score);
    if (c->p.echo)
        json_put(out, list ? ",'text':%q" : ",'document':{'text':%q}",
                 text_of(cJSON_GetArrayItem(documents(c), (int)r->index)));
    strbuf_putc(out, '}');
}

static void whole_rerank(call *c)
{
    const size_t n = c->n_prompts - 1;
    const size_t most = c->p.top_n > 0 && (size_t)c->p.top_n < n ? (size_t)c->p.top_n : n;
    ranked *all = malloc(n * sizeof *all);
    c->out.failed |= !all;
    for (size_t i = 0; all && i < n; i++)
        all[i] = (ranked){i, cosine(c, 0, i + 1)};
    if (all) qsort(all, n, sizeof *all, by_score);
    if (!c->p.input) {
        json_put(&c->out, "{'id':'rerank-%s','object':'list','model':%q,'results':", c->id,
                 lora_model(c));
    }
    strbuf_putc(&c->out, '[');
    for (size_t i = 0; all && i < most; i++) {
        if (i) strbuf_putc(&c->out, ',');
        put_result(c, &all[i], &c->out);
    }
    strbuf_putc(&c->out, ']');
    if (!c->p.input) put_usage(c, &c->out);
    free(all);
}

static void whole_score(call *c)
{
    const size_t first = (size_t)c->state;
    json_put(&c->out, "{'id':'score-%s','object':'list','created':%i,'model':%q,'data':[", c->id,
             (int64_t)c->created, lora_model(c));
    for (size_t i = first; i < c->n_prompts; i++)
        strbuf_printf(&c->out, "%s{\"index\":%zu,\"object\":\"score\",\"score\":%.9g}",
                      i > first ? "," : "", i - first, cosine(c, first == 1 ? 0 : i - first, i));
    strbuf_putc(&c->out, ']');
    put_usage(c, &c->out);
}

const dialect rerank = {.fields = rerank_tables,
                        .stream_type = "application/json",
                        .read = read_rerank,
                        .whole = whole_rerank};
const dialect score = {.fields = score_tables,
                       .stream_type = "application/json",
                       .read = read_score,
                       .whole = whole_score};
