/* Which route a request takes: see dispatch.h. */
#include "server/dispatch.h"

#include "server/json_memory.h"
#include "server/origin.h"
#include "server/endpoints.h"
#include "server/routes.h"
#include "server/server_state.h"

#include <stdio.h>
#include <string.h>

/* Checks the key and the state of the server. QP_OK: the route may handle the request. */
static qp_status admit(server *s, exchange *x, const route *r, uint64_t *owner, api_error *error)
{
    int phase = atomic_load(&s->phase);
    if (r && r->open) return QP_OK;
    if (!keys_accept(&s->keys, exchange_request(x), owner)) {
        error->code = "invalid_api_key";
        return api_refuse(error, 401, NULL,
                          "the request has no valid API key; send one as \"Authorization: Bearer "
                          "KEY\"");
    }
    if (phase == SERVER_LOADING)
        return api_refuse(error, 503, NULL, "the model is being loaded; try again soon");
    if (phase != SERVER_READY)
        return api_refuse(error, 503, NULL, "the server ends, and takes no more requests");
    const char *coding = http_parser_header(exchange_request(x), "content-encoding");
    if (coding && *coding && strcmp(coding, "identity") != 0)
        return api_refuse(error, 415, NULL,
                          "the body is coded (Content-Encoding: %.40s): send it as it is", coding);
    return QP_OK;
}

static void start(server *s, exchange *x, const route *r, uint64_t owner)
{
    if (r->reply) {
        json_memory_clear();
        r->reply(s, x);
        exchange_release(x);
        return;
    }
    call *c = call_new(s, x, r, owner);
    if (!c) {
        api_error error = {.status = 503, .error = {QP_NO_MEMORY, "out of memory"}};
        server_reply_error(x, &error, r->style);
        exchange_release(x);
        return;
    }
    call_put(c);
}

static void refuse_route(exchange *x, const char *other)
{
    api_error error = {0};
    const http_parser *request = exchange_request(x);
    if (other) {
        char allow[32];
        snprintf(allow, sizeof allow, "Allow: %s", other);
        exchange_add_header(x, allow);
        api_refuse(&error, 405, NULL, "%s is for %s, not for %s", request->target, other,
                   request->method);
    } else {
        api_refuse(&error, 404, NULL, "there is no %.200s here; /openapi.json lists what there is",
                   request->target);
    }
    server_reply_error(x, &error, route_style(request->target));
    exchange_release(x);
}

/* As Anthropic's clients read it. */
static void add_request_id(exchange *x)
{
    char header[96];
    snprintf(header, sizeof header, "request-id: %s", exchange_id(x));
    exchange_add_header(x, header);
}

void server_dispatch(void *context, exchange *x)
{
    server *s = context;
    const http_parser *request = exchange_request(x);
    api_error error = {0};
    if (s->options->prefix && strcmp(request->target, s->options->prefix) == 0) {
        reply_page_slash(s->options->prefix, x);
        exchange_release(x);
        return;
    }
    if (s->options->prefix && !exchange_strip(x, s->options->prefix)) {
        refuse_route(x, NULL);
        return;
    }
    if (origin_check(s->options, s->keys.count > 0, x, &error) != QP_OK) {
        server_reply_error(x, &error, route_style(request->target));
        exchange_release(x);
        return;
    }
    if (strcmp(request->method, "OPTIONS") == 0) {
        exchange_reply(x, 204, NULL, NULL, 0);
        exchange_release(x);
        return;
    }
    const char *other = NULL, *method = request->method;
    const route *r =
        route_find(strcmp(method, "HEAD") == 0 ? "GET" : method, request->target, &other);
    uint64_t owner;
    const server_proxy *proxy = s->options->proxy;
    if (!r && !proxy) {
        refuse_route(x, other);
    } else if (admit(s, x, r, &owner, &error) != QP_OK) {
        server_reply_error(x, &error, r ? r->style : route_style(request->target));
        exchange_release(x);
    } else if (proxy && proxy->take(proxy->context, x)) {
        return;
    } else if (!r || (proxy && !r->open)) {
        refuse_route(x, other);
    } else {
        if (r->style == API_ANTHROPIC) add_request_id(x);
        start(s, x, r, r->open ? 0 : owner);
    }
}
