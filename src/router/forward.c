/* Passes requests on: see forward.h. Until a reply has begun, the request can be sent again: to the
 * process that takes the place of one that has ended. */
#include "router/forward.h"

#include "router/backend.h"
#include "server/routes.h"
#include "server/server_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TRIES_MOST = 200, DEATHS_MOST = 3, PAUSE_US = 25000 };

typedef struct job {
    waiting waits; /* first */
    models *all;
    char *name;
    exchange *x;
    model *model; /* answers it; NULL: it waits */
    backend *backend;
    strbuf request, body; /* `body`: of a reply whose length is known */
    char type[256];       /* its Content-Type */
    int status;
    long long length;  /* of the reply; -1: it comes in pieces */
    int tries, deaths; /* deaths: of processes that had the request */
    pid_t process;     /* that has it, or had it last */
    bool begun;        /* the client has got something of the reply */
    bool done;
    struct event *later;
} job;

static void go_on(waiting *w, model *m, const char *why);

void forward_refuse(exchange *x, int status, const char *code, const char *param,
                    const char *message)
{
    api_error error = {.code = code};
    api_refuse(&error, status, param, "%s", message);
    server_reply_error(x, &error, route_style(exchange_request(x)->target));
    exchange_release(x);
}

/* ---- The request as it is sent --------------------------------------------------------------- */

static bool is_passed(const char *name)
{
    static const char *const own[] = {"host",   "origin",  "connection",        "keep-alive",
                                      "te",     "trailer", "transfer-encoding", "upgrade",
                                      "expect", "referer", "content-length",    "x-request-id"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0) return false;
    return true;
}

static void put_target(const http_parser *request, strbuf *out)
{
    for (const unsigned char *c = (const unsigned char *)request->target; *c; c++) {
        if (*c > ' ' && *c < 127 && !strchr("%?#\"<>\\^`{|}", *c))
            strbuf_putc(out, (char)*c);
        else
            strbuf_printf(out, "%%%02X", *c);
    }
    if (*request->query) strbuf_printf(out, "?%s", request->query);
}

static void put_request(const exchange *x, strbuf *out)
{
    const http_parser *request = exchange_request(x);
    const char *at = strbuf_text(&request->headers);
    const bool head = strcmp(request->method, "HEAD") == 0; /* whose reply has no body to read */
    strbuf_printf(out, "%s ", head ? "GET" : request->method);
    put_target(request, out);
    strbuf_printf(out, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: %s\r\n",
                  exchange_id(x));
    for (size_t i = 0; i < request->n_headers; i++) {
        const char *value = at + strlen(at) + 1;
        if (is_passed(at)) strbuf_printf(out, "%s: %s\r\n", at, value);
        at = value + strlen(value) + 1;
    }
    if (request->body.length || strcmp(request->method, "POST") == 0)
        strbuf_printf(out, "Content-Length: %zu\r\n", request->body.length);
    strbuf_puts(out, "\r\n");
    strbuf_append(out, strbuf_text(&request->body), request->body.length);
}

/* ---- The end of a job ------------------------------------------------------------------------ */

/* The exchange lets go of the job with its last reference. */
static void free_job(void *context)
{
    job *j = context;
    if (j->later) event_free(j->later);
    strbuf_free(&j->request);
    strbuf_free(&j->body);
    free(j->name);
    free(j);
}

/* Nothing more happens to the job. */
static void finish(job *j)
{
    backend *b = j->backend;
    model *m = j->model;
    j->done = true;
    j->backend = NULL;
    j->model = NULL;
    backend_close(b);
    if (m) models_answered(m);
    exchange_release(j->x);
}

static void refuse(job *j, int status, const char *why)
{
    api_error error = {0};
    api_refuse(&error, status, NULL, "%s", why);
    server_reply_error(j->x, &error, route_style(exchange_request(j->x)->target));
    finish(j);
}

/* A reply that is cut: a stream has an event that says so. */
static void tell_cut(job *j)
{
    static const char why[] = "the process of the model ended within the answer";
    strbuf text = {0};
    if (strncmp(j->type, "text/event-stream", 17) == 0)
        strbuf_printf(
            &text, "\n\ndata: {\"error\":{\"message\":\"%s\",\"type\":\"server_error\"}}\n\n", why);
    else if (strncmp(j->type, "application/x-ndjson", 20) == 0)
        strbuf_printf(&text, "\n{\"error\":\"%s\"}\n", why);
    exchange_send(j->x, strbuf_text(&text), text.length);
    exchange_end(j->x);
    strbuf_free(&text);
}

/* ---- The reply ------------------------------------------------------------------------------- */

static void on_header(void *context, const char *line)
{
    static const char *const own[] = {
        "Server:",        "Connection:", "X-Request-Id:", "Content-Length:", "Transfer-Encoding:",
        "Cache-Control:", "traceparent:"};
    static const char type[] = "Content-Type:";
    job *j = context;
    if (strncasecmp(line, type, sizeof type - 1) == 0) {
        line += sizeof type - 1;
        snprintf(j->type, sizeof j->type, "%s", line + strspn(line, " \t"));
        return;
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncasecmp(line, own[i], strlen(own[i])) == 0) return;
    exchange_add_header(j->x, line);
}

static void on_begin(void *context, int status, long long length)
{
    job *j = context;
    j->status = status;
    j->length = length;
    if (length >= 0) return;
    j->begun = true;
    exchange_begin(j->x, status, j->type);
}

static void on_body(void *context, const char *bytes, size_t length)
{
    job *j = context;
    if (j->length >= 0) {
        strbuf_append(&j->body, bytes, length);
        return;
    }
    exchange_send(j->x, bytes, length);
    if (exchange_is_full(j->x)) backend_pause(j->backend, true);
}

static void ask_again(job *j);

static void on_end(void *context, bool whole)
{
    job *j = context;
    j->backend = NULL; /* it closes itself */
    if (!whole && !j->begun) {
        ask_again(j);
        return;
    }
    if (!whole)
        tell_cut(j);
    else if (j->length >= 0)
        exchange_reply(j->x, j->status, *j->type ? j->type : NULL, strbuf_text(&j->body),
                       j->body.length);
    else
        exchange_end(j->x);
    finish(j);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static void ask(job *j)
{
    qp_error error = {0};
    if (models_ask(j->all, j->name, &j->waits, &error) != QP_OK) refuse(j, 503, error.message);
}

static void on_later(evutil_socket_t none, short events, void *context)
{
    (void)none, (void)events;
    ask(context);
}

/* The process has gone, or will have in a moment. */
static void ask_again(job *j)
{
    const struct timeval pause = {.tv_usec = PAUSE_US};
    model *m = j->model;
    j->model = NULL;
    strbuf_clear(&j->body);
    *j->type = '\0';
    if (m) models_answered(m);
    if (!j->later) j->later = evtimer_new(j->all->base, on_later, j);
    if (j->deaths >= DEATHS_MOST)
        refuse(j, 502,
               "the process of the model ended within the request, and so did those that "
               "took its place");
    else if (++j->tries > TRIES_MOST || !j->later || evtimer_add(j->later, &pause) != 0)
        refuse(j, 502, "the process of the model does not answer");
}

static void go_on(waiting *w, model *m, const char *why)
{
    job *j = (job *)w;
    const backend_receiver receiver = {on_header, on_begin, on_body, on_end, j};
    if (!m) {
        refuse(j, 503, why);
        return;
    }
    j->deaths += j->process && j->process != m->process;
    j->process = m->process;
    j->model = m;
    j->backend = backend_open(j->all->base, m->socket, strbuf_text(&j->request), j->request.length,
                              &receiver);
    if (!j->backend) ask_again(j);
}

static void on_gone(void *context)
{
    job *j = context;
    if (j->done) return;
    if (j->later) evtimer_del(j->later);
    if (!j->model) models_forget(j->all, &j->waits);
    finish(j);
}

static void on_room(void *context)
{
    job *j = context;
    if (j->backend) backend_pause(j->backend, false);
}

void forward(models *all, const char *name, exchange *x)
{
    job *j = calloc(1, sizeof *j);
    if (j) {
        *j = (job){.waits.go = go_on, .all = all, .name = strdup(name), .x = x, .length = -1};
        put_request(x, &j->request);
    }
    if (!j || !j->name || j->request.failed) {
        if (j) free_job(j);
        forward_refuse(x, 503, NULL, NULL, "out of memory");
        return;
    }
    const exchange_handler handler = {j, on_gone, on_room, free_job};
    exchange_hold(x);
    exchange_set_handler(x, &handler);
    if (!j->done) ask(j);
    exchange_release(x);
}
