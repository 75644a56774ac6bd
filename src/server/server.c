/* The server's I/O thread: loading, signals, keys, routes. See server.h. */
#include "server/server_state.h"

#include "base/platform.h"
#include "engine/engine.h"
#include "server/access_log.h"
#include "server/dispatch.h"
#include "server/json_memory.h"
#include "server/listen.h"
#include "server/lora.h"
#include "server/notify.h"
#include "server/origin.h"
#include "server/prompt_cache.h"
#include "server/routes.h"
#include "text/json_string.h"

#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void say(const server *s, qp_log_level level, const char *message)
{
    const server_options *o = s->options;
    if (o->log_json && o->log_line) {
        strbuf line = {0};
        access_log_put_message(level, message, &line);
        o->log_line(o->context, strbuf_text(&line));
        strbuf_free(&line);
    } else if (o->log) {
        o->log(o->context, level, message);
    }
}

static void count_status(server *s, const exchange *x)
{
    const char *other;
    const http_parser *request = exchange_request(x);
    const route *r = route_find(request->method, request->target, &other);
    const int digit = exchange_status(x) / 100;
    if (r && digit > 0 && digit < HTTP_STATUSES)
        atomic_fetch_add_explicit(&s->statuses[r - routes][digit], 1, memory_order_relaxed);
}

/* On the I/O thread. */
static void on_end_of_exchange(void *context, const exchange *x)
{
    server *s = context;
    const server_options *o = s->options;
    count_status(s, x);
    if (!o->access_log || !o->log_line) return;
    strbuf line = {0};
    access_log_put(x, o->log_json, &line);
    o->log_line(o->context, strbuf_text(&line));
    strbuf_free(&line);
}

/* ---- Replies ------------------------------------------------------------------------------- */

void server_reply_error(exchange *x, const api_error *error, api_style style)
{
    strbuf body = {0};
    if (error->status == 429 || error->status == 503) exchange_add_header(x, "Retry-After: 1");
    if (error->status == 401) exchange_add_header(x, "WWW-Authenticate: Bearer");
    api_error_body(error, style, &body);
    exchange_reply(x, error->status, "application/json", strbuf_text(&body), body.length);
    strbuf_free(&body);
}

void server_reply_json(exchange *x, const char *format, ...)
{
    strbuf text = {0};
    va_list args;
    va_start(args, format);
    json_vput(&text, format, args);
    va_end(args);
    server_reply_text(x, "application/json", &text);
    strbuf_free(&text);
}

void server_reply_text(exchange *x, const char *type, const strbuf *text)
{
    api_error error = {.status = 500, .error = {QP_NO_MEMORY, "out of memory for the reply"}};
    if (text->failed || json_memory_failed())
        server_reply_error(x, &error, API_OPENAI);
    else
        exchange_reply(x, 200, type, strbuf_text(text), text->length);
}

qp_status server_vocabulary(const server *s, api_error *error)
{
    if (s->vocabulary) return QP_OK;
    return api_refuse(error, 400, NULL,
                      "the model has no vocabulary (its weights are synthetic): send token ids as "
                      "\"prompt\" of /v1/completions");
}

/* ---- Loading ------------------------------------------------------------------------------- */

static bool take_ready(void *context)
{
    server *s = context;
    batcher *b = atomic_load(&s->batcher);
    request *r = b ? batcher_take_ready(b) : NULL;
    if (r) call_take_events(r);
    return r != NULL;
}

static void wake(void *context)
{
    server *s = context;
    workers_wake(s->workers);
}

static model_pooling pooling_of(const server_options *options, const qp_engine *engine)
{
    switch (options->pooling) {
    case SERVER_POOLING_MEAN:
        return POOLING_MEAN;
    case SERVER_POOLING_LAST:
        return POOLING_LAST;
    default:
        return model_get_config(engine->model)->pooling;
    }
}

static qp_status publish_cache(server *s, qp_error *error)
{
    const kv_events_options options = {.endpoint = s->options->kv_events,
                                       .replay = s->options->kv_events_replay,
                                       .topic = s->options->kv_events_topic,
                                       .medium = s->engine->device.context ? "GPU" : "CPU"};
    if (!options.endpoint) return QP_OK;
    TRY(engine_open_prefixes(s->engine, error));
    return kv_events_open(&options, &s->engine->prefixes, &s->published, error);
}

/* The loader's thread: opens the engine and the batcher. */
static void *load(void *context)
{
    server *s = context;
    qp_error *error = &s->load_error;
    if (s->options->proxy) {
        platform_event_signal(s->loaded);
        return NULL;
    }
    qp_status status = s->options->open(s->options->context, &s->engine, &s->defaults, error);
    const char *template = s->options->chat_template;
    if (status == QP_OK && template)
        status = vocabulary_set_template(s->engine->vocabulary, template, strlen(template), error);
    if (status == QP_OK) {
        s->vocabulary = qp_engine_vocabulary(s->engine);
        s->takes_tools = vocabulary_takes_tools(s->vocabulary);
        s->thinks = thinking_marks_of(s->vocabulary) != NULL;
        s->pooling = pooling_of(s->options, s->engine);
        s->info = *qp_engine_get_info(s->engine);
        lora_begin(s);
        status = publish_cache(s, error);
    }
    if (status == QP_OK) {
        if (s->options->prompt_cache) prompt_cache_restore(s->options, s->engine);
        batcher_options options = {
            .max_queued = s->options->max_queued, .wake = wake, .wake_context = s};
        batcher *opened = NULL;
        status = batcher_open(&options, s->engine, &opened, error);
        atomic_store(&s->batcher, opened);
    }
    error->status = status;
    platform_event_signal(s->loaded);
    return NULL;
}

static void on_loaded(evutil_socket_t event, short events, void *context)
{
    (void)event, (void)events;
    server *s = context;
    pthread_join(s->loader, NULL);
    event_base_loopcontinue(s->base);
    if (s->load_error.status != QP_OK) {
        atomic_store(&s->phase, SERVER_FAILED);
        event_base_loopbreak(s->base);
        return;
    }
    atomic_store(&s->phase, SERVER_READY);
    notify_manager("READY=1\nSTATUS=serving");
    say(s, QP_LOG_NOTICE, "ready");
    if (s->options->ready) s->options->ready(s->options->context, http_port(s->http));
}

/* ---- Signals ------------------------------------------------------------------------------- */

static void on_drain_check(evutil_socket_t socket, short events, void *context)
{
    (void)socket, (void)events;
    server *s = context;
    if (atomic_load(&s->phase) == SERVER_DRAINING && http_connections(s->http) == 0)
        event_base_loopbreak(s->base);
}

static void on_drain_end(evutil_socket_t socket, short events, void *context)
{
    (void)socket, (void)events;
    server *s = context;
    say(s, QP_LOG_WARNING, "the time to end is over; answers that were not finished are cut off");
    event_base_loopbreak(s->base);
}

static struct timeval time_of(double seconds)
{
    const time_t whole = (time_t)seconds;
    return (struct timeval){whole, (suseconds_t)((seconds - (double)whole) * 1e6)};
}

/* No more connections; answers under way end within drain_seconds. */
static void on_leave_end(evutil_socket_t socket, short events, void *context)
{
    (void)socket, (void)events;
    server *s = context;
    if (atomic_load(&s->phase) != SERVER_READY) return;
    atomic_store(&s->phase, SERVER_DRAINING);
    notify_manager("STOPPING=1\nSTATUS=finishing answers");
    say(s, QP_LOG_NOTICE, "ending: answers under way are finished; again to end at once");
    http_drain(s->http);
    const struct timeval most = time_of(s->options->drain_seconds);
    event_base_once(s->base, -1, EV_TIMEOUT, on_drain_end, s, &most);
}

/* The first signal lets answers end; before that, requests come in for drain_delay seconds more,
 * in which routers see that the server is not ready. Another signal ends this time, and one after
 * that the server. */
static void on_end(evutil_socket_t number, short events, void *context)
{
    server *s = context;
    const struct timeval delay = time_of(s->options->drain_delay);
    if (atomic_load(&s->phase) != SERVER_READY) {
        event_base_loopbreak(s->base);
    } else if (!atomic_exchange(&s->leaving, true) && s->options->drain_delay > 0) {
        say(s, QP_LOG_NOTICE, "not ready any more: requests are still taken for --drain-delay");
        event_base_once(s->base, -1, EV_TIMEOUT, on_leave_end, s, &delay);
    } else {
        on_leave_end(number, events, s);
    }
}

static void on_stop(evutil_socket_t stop, short events, void *context)
{
    uint64_t count;
    while (read(stop, &count, sizeof count) < 0 && errno == EINTR)
        ;
    on_end(stop, events, context);
}

/* Prompts that clients have templated themselves have control tokens, if the owner says so, or
 * only this computer's users can send any. */
static void decide_raw_special(server *s)
{
    const server_options *o = s->options;
    const bool own = origin_is_loopback(o) && !s->keys.count && !o->insecure;
    atomic_store(&s->raw_special,
                 o->raw_special == SERVER_ON || (o->raw_special == SERVER_AUTO && own));
}

static void read_certificate_again(server *s)
{
    qp_error error = {0};
    char message[sizeof error.message + 64];
    const server_options *o = s->options;
    if (!s->tls) return;
    const bool read = tls_read(&s->tls, o->tls_certificate,
                               o->tls_key ? o->tls_key : o->tls_certificate, &error) == QP_OK;
    snprintf(message, sizeof message, "%s%s",
             read ? "the certificate was read again" : "the certificate read before stays: ",
             read ? "" : error.message);
    say(s, read ? QP_LOG_NOTICE : QP_LOG_WARNING, message);
}

static void on_hangup(evutil_socket_t number, short events, void *context)
{
    (void)number, (void)events;
    server *s = context;
    const char *file = s->options->api_key_file;
    qp_error error = {0};
    read_certificate_again(s);
    if (s->options->proxy) s->options->proxy->read_again(s->options->proxy->context);
    if (!file && !s->tls) {
        say(s, QP_LOG_WARNING, "there is no --api-key-file or --tls-cert to read again");
    } else if (!file) {
        return;
    } else if (keys_read(&s->keys, file, s->options->api_key, &error) == QP_OK) {
        decide_raw_special(s);
        say(s, QP_LOG_NOTICE, "the API keys were read again");
    } else {
        char message[sizeof error.message + 64];
        snprintf(message, sizeof message, "the keys read before stay valid: %s", error.message);
        say(s, QP_LOG_WARNING, message);
    }
}

/* ---- Running ------------------------------------------------------------------------------- */

/* A host by which other computers come in. */
static const char *first_open_host(const server_options *o)
{
    for (size_t i = 0; i < o->n_hosts; i++) {
        server_options one = *o;
        one.hosts = o->hosts + i;
        one.n_hosts = 1;
        if (!origin_is_loopback(&one)) return o->hosts[i];
    }
    return "";
}

static qp_status check_host(const server *s, qp_error *error)
{
    const server_options *o = s->options;
    if (origin_is_loopback(o) || s->keys.count || o->insecure) return QP_OK;
    return error_set(error, QP_INVALID,
                     "--host %s lets other computers in, and without a key anybody may use the "
                     "model; give keys with --api-key-file, or say --insecure",
                     first_open_host(o));
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

enum { N_EVENTS = 5 };

static qp_status open_server(server *s, struct event *events[N_EVENTS], qp_error *error)
{
    const server_options *o = s->options;
    json_memory_watch();
    s->keys.secret = hash_key_get();
    if (o->prompt_cache) TRY(prompt_cache_open(o->prompt_cache, &s->keys.secret, error));
    TRY(keys_read(&s->keys, o->api_key_file, o->api_key, error));
    TRY(check_host(s, error));
    decide_raw_special(s);
    raise_descriptor_limit();
    s->base = event_base_new();
    s->loaded = platform_event_open(false);
    if (!s->base || s->loaded < 0) return error_no_memory(error, "the server's events", 0);
    if (o->tls_certificate)
        TRY(tls_read(&s->tls, o->tls_certificate, o->tls_key ? o->tls_key : o->tls_certificate,
                     error));
    http_options options = {.hosts = o->hosts,
                            .n_hosts = o->n_hosts,
                            .tls = s->tls,
                            .on_end = on_end_of_exchange,
                            .port = o->port,
                            .body_most = o->max_body,
                            .max_connections = o->max_connections,
                            .client_connections = o->client_connections,
                            .ping_seconds = o->ping_seconds,
                            .on_request = server_dispatch,
                            .context = s};
    if (o->proxy) TRY(o->proxy->open(o->proxy->context, s->base, error));
    TRY(http_open(&options, s->base, &s->http, error));
    TRY(workers_open(o->workers, take_ready, s, &s->workers, error));
    struct timeval often = {.tv_usec = 100000};
    events[0] = event_new(s->base, s->loaded, EV_READ, on_loaded, s);
    events[1] = event_new(s->base, -1, EV_PERSIST, on_drain_check, s);
    if (o->stop) {
        events[2] = event_new(s->base, o->stop, EV_READ | EV_PERSIST, on_stop, s);
    } else {
        events[2] = evsignal_new(s->base, SIGTERM, on_end, s);
        events[3] = evsignal_new(s->base, SIGINT, on_end, s);
        events[4] = evsignal_new(s->base, SIGHUP, on_hangup, s);
    }
    for (int i = 0; i < (o->stop ? 3 : N_EVENTS); i++) {
        if (!events[i] || event_add(events[i], i == 1 ? &often : NULL) != 0)
            return error_no_memory(error, "the server's events", 0);
    }
    if (pthread_create(&s->loader, NULL, load, s) != 0)
        return error_set(error, QP_IO, "the system refused to start a thread for the server");
    return QP_OK;
}

static void close_server(server *s, struct event *events[N_EVENTS])
{
    const server_options *o = s->options;
    http_disconnect(s->http);
    if (o->limit_ending) o->limit_ending(true);
    if (o->proxy) o->proxy->close(o->proxy->context);
    if (s->batcher) batcher_stop(s->batcher);
    workers_close(s->workers); /* they take the last events */
    http_close(s->http);
    const bool served = s->batcher != NULL;
    batcher_close(s->batcher);
    if (o->limit_ending) o->limit_ending(false);
    kv_events_close(s->published);
    if (served && o->prompt_cache) prompt_cache_save(o, s->engine);
    for (int i = 0; i < N_EVENTS; i++) {
        if (events[i]) event_free(events[i]);
    }
    if (s->base) event_base_free(s->base);
    if (s->loaded >= 0) close(s->loaded);
    response_store_close(&s->responses);
    form_cache_close(&s->forms); /* its grammars belong to the engine's vocabulary */
    qp_engine_close(s->engine);
    keys_free(&s->keys);
    tls_free(s->tls);
    free(s);
}

static void say_address(const server *s, const char *host)
{
    char line[512];
    const bool colon = strchr(host, ':');
    const char *path = listen_unix_path(host), *prefix = s->options->prefix;
    if (path)
        snprintf(line, sizeof line, "listening at unix:%s", path);
    else
        snprintf(line, sizeof line, "listening at http%s://%s%s%s:%d%s", s->tls ? "s" : "",
                 colon ? "[" : "", host, colon ? "]" : "", http_port(s->http),
                 prefix ? prefix : "");
    say(s, QP_LOG_NOTICE, line);
}

qp_status server_run(const server_options *options, qp_error *error)
{
    struct event *events[N_EVENTS] = {0};
    server *s = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "the server", sizeof *s);
    s->options = options;
    s->started = time(NULL);
    s->loaded = -1;
    form_cache_open(&s->forms);
    response_store_open(&s->responses, options->store_size);
    qp_status status = open_server(s, events, error);
    if (status == QP_OK) {
        for (size_t i = 0; i < options->n_hosts; i++)
            say_address(s, options->hosts[i]);
        event_base_dispatch(s->base);
        if (atomic_load(&s->phase) == SERVER_LOADING) {
            status = error_set(error, QP_CANCELLED, "ended before the model was loaded");
            if (!options->stop)
                return status; /* the loader cannot be stopped: the process ends, and
                                * takes it along */
            pthread_join(s->loader, NULL);
        }
        if (atomic_load(&s->phase) == SERVER_FAILED) {
            status = s->load_error.status;
            if (error) *error = s->load_error;
        }
    }
    close_server(s, events);
    return status;
}
