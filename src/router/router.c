/* Which requests are about the models, and which model's the others are: see router.h. */
#include "router/router.h"

#include "base/clock.h"
#include "router/forward.h"
#include "router/lists.h"
#include "router/members.h"
#include "router/pull.h"
#include "server/json_memory.h"
#include "server/routes.h"
#include "server/server_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 768 };

struct router {
    router_options options;
    server_proxy proxy;
    models models;
    pulls pulls;
};

/* ---- The model of a request ------------------------------------------------------------------ */

/* Of `?model=NAME`, decoded. */
static bool name_of_query(const char *query, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = query; at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL) {
        if (strncmp(at, "model=", 6) != 0) continue;
        for (at += 6; *at && *at != '&' && n < size - 1; at++) {
            unsigned code;
            if (*at == '%' && sscanf(at + 1, "%2x", &code) == 1 && code) {
                out[n++] = (char)code;
                at += at[1] && at[2] ? 2 : 1;
            } else {
                out[n++] = *at == '+' ? ' ' : *at;
            }
        }
        out[n] = '\0';
        return n > 0;
    }
    return false;
}

static bool name_of_body(const strbuf *body, char *out, size_t size)
{
    return member_text(strbuf_text(body), body->length, "model", out, size) ||
           member_text(strbuf_text(body), body->length, "name", out, size);
}

static void read_known(router *r)
{
    qp_error error;
    /* A list that cannot be read any more stays as it was. */
    if (models_list(&r->models, &error) != QP_OK && r->options.log)
        r->options.log(NULL, QP_LOG_WARNING, error.message);
}

/* The name of a model that there is, or a refusal; false: the exchange is answered. */
static bool check_name(router *r, const char *name, exchange *x)
{
    if (!models_runs(&r->models, name)) read_known(r); /* it may be new, or have changed */
    if (catalog_find(&r->models.known, name)) return true;
    strbuf message = {0};
    strbuf_printf(&message, "there is no model %.200s here, but", name);
    for (size_t i = 0; i < r->models.known.count && i < 20; i++)
        strbuf_printf(&message, "%s %.100s", i ? "," : "", r->models.known.entries[i].name);
    if (!r->models.known.count) strbuf_puts(&message, " no other either");
    forward_refuse(x, 404, "model_not_found", "model", strbuf_text(&message));
    strbuf_free(&message);
    return false;
}

static void pass_on(router *r, exchange *x)
{
    const http_parser *request = exchange_request(x);
    const bool post = strcmp(request->method, "POST") == 0;
    char name[NAME_SIZE];
    const model *running;
    if (!name_of_query(request->query, name, sizeof name) &&
        !(post && name_of_body(&request->body, name, sizeof name))) {
        running = post ? NULL : models_last(&r->models);
        if (!running && r->models.known.count != 1) {
            forward_refuse(x, 400, NULL, "model",
                           post ? "\"model\" must name one of the models that GET /v1/models lists"
                                : "no model runs; ?model=NAME names one of GET /v1/models");
            return;
        }
        snprintf(name, sizeof name, "%s", running ? running->name : r->models.known.entries->name);
    }
    if (!check_name(r, name, x)) return;
    models_keep(&r->models, name, r->models.keep);
    forward(&r->models, name, x);
}

/* ---- Ollama's way to load and unload --------------------------------------------------------- */

/* Nanoseconds of "5m", "1h30m", "300ms", "-1" or a number of seconds; UINT64_MAX: for ever. False:
 * it is none of these. */
static bool read_duration(const char *text, size_t length, uint64_t *out)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"h", 3600}, {"m", 60}, {"s", 1}};
    char copy[64], *at = copy, *end;
    double sum = 0;
    if (length && *text == '"') text++, length -= length > 1 ? 2 : 1;
    if (length == 0 || length >= sizeof copy) return false;
    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    if (strspn(copy, "0123456789.+-eEhmnsu") != length) return false;
    while (*at) {
        const double value = strtod(at, &end);
        double unit = *end ? 0 : 1;
        if (end == at) return false;
        for (size_t i = 0; !unit && i < sizeof units / sizeof *units; i++) {
            const size_t n = strlen(units[i].name);
            if (strncmp(end, units[i].name, n) != 0) continue;
            unit = units[i].seconds;
            end += n;
        }
        if (!unit) return false;
        sum += value * unit;
        at = end;
    }
    *out = *copy == '-' || !(sum >= 0) || sum > 1e9 ? UINT64_MAX : (uint64_t)(sum * 1e9);
    return true;
}

/* Whether the request asks for more than to load the model, or to end it. */
static bool asks(const char *json, size_t length)
{
    static const char *const members[] = {"messages", "prompt", "input"};
    const char *value;
    size_t n;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (!member_find(json, length, members[i], &value, &n)) continue;
        for (size_t k = 0; k < n; k++)
            if (!strchr("[]\" \t\r\n", value[k])) return strncmp(value, "null", 4) != 0;
    }
    return false;
}

static void reply_unloaded(exchange *x, const char *name, bool chats)
{
    char when[CLOCK_UTC_SIZE];
    clock_utc(time(NULL), when);
    server_reply_json(x,
                      chats ? "{'model':%q,'created_at':%q,'message':{'role':'assistant',"
                              "'content':''},'done':true,'done_reason':'unload'}"
                            : "{'model':%q,'created_at':%q,'response':'','done':true,"
                              "'done_reason':'unload'}",
                      name, when);
    exchange_release(x);
}

/* A request with keep_alive; one that asks for nothing else and 0 ends the model. */
static void take_ollama(router *r, exchange *x)
{
    const http_parser *request = exchange_request(x);
    const char *json = strbuf_text(&request->body), *value;
    const size_t length = request->body.length;
    const bool chats = strcmp(request->target, "/api/chat") == 0;
    char name[NAME_SIZE];
    size_t n;
    uint64_t keep;
    if (!name_of_body(&request->body, name, sizeof name) ||
        !member_find(json, length, "keep_alive", &value, &n) || strncmp(value, "null", 4) == 0) {
        pass_on(r, x);
        return;
    }
    if (!read_duration(value, n, &keep)) {
        forward_refuse(x, 400, NULL, "keep_alive",
                       "\"keep_alive\" must be seconds, or a text such as \"5m\"");
        return;
    }
    if (!check_name(r, name, x)) return;
    if (keep == 0 && !asks(json, length)) { /* clients unload so */
        models_end(&r->models, name);
        reply_unloaded(x, catalog_find(&r->models.known, name)->name, chats);
        return;
    }
    models_keep(&r->models, name, keep);
    forward(&r->models, name, x);
}

/* ---- The router's own ------------------------------------------------------------------------ */

static void reply_list(exchange *x, cJSON *tree)
{
    server_reply_json(x, "%j", tree);
    cJSON_Delete(tree);
    exchange_release(x);
}

static void reply_models_here(router *r, exchange *x)
{
    read_known(r);
    reply_list(x, list_openai(&r->models));
}

static void reply_model_here(router *r, exchange *x)
{
    const char *name = exchange_request(x)->target + strlen("/v1/models/");
    if (check_name(r, name, x)) reply_list(x, list_openai_one(&r->models, name));
}

static void reply_tags_here(router *r, exchange *x)
{
    read_known(r);
    reply_list(x, list_ollama_tags(&r->models));
}

static void reply_ps_here(router *r, exchange *x)
{
    reply_list(x, list_ollama_ps(&r->models));
}

static void take_pull(router *r, exchange *x)
{
    const strbuf *body = &exchange_request(x)->body;
    char name[NAME_SIZE];
    const char *value;
    size_t n;
    if (!catalog_is_folder(r->options.models)) {
        forward_refuse(x, 400, NULL, NULL,
                       "the models are those of a file, into which none can be pulled");
    } else if (!name_of_body(body, name, sizeof name)) {
        forward_refuse(x, 400, NULL, "model", "\"model\" must name a model of the hub");
    } else {
        const bool whole = member_find(strbuf_text(body), body->length, "stream", &value, &n) &&
                           n == 5 && strncmp(value, "false", 5) == 0;
        pull_begin(&r->pulls, name, !whole, x);
    }
}

static void take_delete(router *r, exchange *x)
{
    qp_error error = {0};
    char name[NAME_SIZE];
    if (!name_of_body(&exchange_request(x)->body, name, sizeof name)) {
        forward_refuse(x, 400, NULL, "model", "\"model\" must name a model");
        return;
    }
    if (!check_name(r, name, x)) return;
    const catalog_entry *e = catalog_find(&r->models.known, name);
    if (!e->pulled) {
        forward_refuse(x, 400, NULL, "model",
                       "the model was not pulled by this server, so its files are left alone");
        return;
    }
    models_end(&r->models, name);
    if (pull_remove(&r->pulls, e->name, &error) != QP_OK) {
        forward_refuse(x, 500, NULL, NULL, error.message);
        return;
    }
    read_known(r);
    exchange_reply(x, 200, NULL, NULL, 0);
    exchange_release(x);
}

static void refuse_making(router *r, exchange *x)
{
    (void)r;
    forward_refuse(x, 501, NULL, NULL,
                   "models are not made, copied or pushed here: put files into the folder of "
                   "--models, or pull them");
}

static void take_end(router *r, exchange *x)
{
    char name[NAME_SIZE];
    if (!name_of_body(&exchange_request(x)->body, name, sizeof name)) {
        forward_refuse(x, 400, NULL, "model", "\"model\" must name a model");
    } else if (check_name(r, name, x)) {
        models_end(&r->models, name);
        cJSON *tree = cJSON_CreateObject();
        cJSON_AddBoolToObject(tree, "success", true);
        reply_list(x, tree);
    }
}

static const struct {
    const char *method, *path; /* a path that ends in '*': all that begin so */
    void (*take)(router *r, exchange *x);
} own_routes[] = {
    {"GET", "/v1/models", reply_models_here},  {"GET", "/models", reply_models_here},
    {"GET", "/v1/models/*", reply_model_here}, {"GET", "/api/tags", reply_tags_here},
    {"GET", "/api/ps", reply_ps_here},         {"POST", "/api/pull", take_pull},
    {"DELETE", "/api/delete", take_delete},    {"POST", "/api/create", refuse_making},
    {"POST", "/api/copy", refuse_making},      {"POST", "/api/push", refuse_making},
    {"POST", "/api/generate", take_ollama},    {"POST", "/api/chat", take_ollama},
    {"POST", "/api/embed", take_ollama},       {"POST", "/api/embeddings", take_ollama},
    {"POST", "/models/unload", take_end},
};

static bool matches(const char *pattern, const char *path)
{
    const size_t n = strlen(pattern);
    return pattern[n - 1] == '*' ? strncmp(pattern, path, n - 1) == 0 && path[n - 1]
                                 : strcmp(pattern, path) == 0;
}

static bool take(void *context, exchange *x)
{
    router *r = context;
    const http_parser *request = exchange_request(x);
    json_memory_clear();
    const char *other, *method = strcmp(request->method, "HEAD") == 0 ? "GET" : request->method;
    for (size_t i = 0; i < sizeof own_routes / sizeof *own_routes; i++) {
        if (!matches(own_routes[i].path, request->target) ||
            strcmp(own_routes[i].method, method) != 0)
            continue;
        own_routes[i].take(r, x);
        return true;
    }
    const route *known = route_find(method, request->target, &other);
    if (!known || known->open) return false;
    pass_on(r, x);
    return true;
}

/* ---------------------------------------------------------------------------------------------- */

static qp_status open_router(void *context, struct event_base *base, qp_error *error)
{
    router *r = context;
    return models_open(&r->models, &r->options, base, error);
}

static void read_again(void *context)
{
    models_renew(&((router *)context)->models);
}

static void close_router(void *context)
{
    router *r = context;
    pulls_close(&r->pulls);
    models_close(&r->models);
}

qp_status router_new(const router_options *options, const server_proxy **proxy, router **out,
                     qp_error *error)
{
    router *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return error_no_memory(error, "the server", sizeof *r);
    r->options = *options;
    r->pulls.folder = options->models;
    r->proxy = (server_proxy){open_router, take, read_again, close_router, r};
    qp_status status = catalog_read(options->models, &r->models.known, error);
    if (status != QP_OK) return free(r), status;
    *proxy = &r->proxy;
    *out = r;
    return QP_OK;
}

void router_free(router *r)
{
    if (!r) return;
    catalog_free(&r->models.known); /* if the server never ran */
    free(r);
}
