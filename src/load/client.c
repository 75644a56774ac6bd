#include "load/client.h"

#include "base/clock.h"
#include "load/stream.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { TICK_US = 100000, TICKS_A_REPORT = 5, MOST_STREAMS = 65536 };

struct client {
    const workload *work;
    const load_options *options;
    load_result *result;
    stream_shared shared;
    struct event *tick, *arrival;
    strbuf head; /* the start of every request, up to the value of Content-Length */

    stream **streams; /* [n_streams] all streams */
    size_t n_streams, stream_capacity;
    stream *idle, *resting; /* lists: waiting for work; for the next tick, after a failure */

    /* One run: requests [0, next) were sent; [next, arrived) wait for a stream. */
    bool warming, stopped;
    size_t next, arrived, count, running, done, max_streams;
    double *arrivals; /* ring: times of arrival of [next, arrived), if requests have such times */
    size_t ring;      /* its size, a power of two */
    double next_arrival;
    int ticks;
    qp_error error; /* the error that ended the loop */
};

static double now(const client *c)
{
    return (double)(clock_ns() - c->shared.begin_ns) * 1e-9;
}

static void stop_with(client *c, const qp_error *error)
{
    c->error = *error;
    event_base_loopbreak(c->shared.base);
}

/* --- Streams and their requests. --- */

static void on_ended(stream *s, load_outcome outcome, const qp_error *why);

static stream *new_stream(client *c)
{
    if (c->n_streams == c->stream_capacity) {
        size_t more = c->stream_capacity ? 2 * c->stream_capacity : 64;
        stream **streams = realloc(c->streams, more * sizeof *streams);
        if (!streams) return NULL;
        c->streams = streams;
        c->stream_capacity = more;
    }
    stream *s = stream_new(&c->shared, on_ended, c);
    if (s) c->streams[c->n_streams++] = s;
    return s;
}

/* Returns an idle stream, or a new one if the limit allows; NULL: none now. */
static stream *take_stream(client *c)
{
    stream *s = c->idle;
    if (s) {
        c->idle = s->next;
        return s;
    }
    if (c->n_streams >= c->max_streams) return NULL;
    s = new_stream(c);
    if (!s) {
        qp_error error;
        error_no_memory(&error, "a stream", sizeof *s);
        stop_with(c, &error);
    }
    return s;
}

static void write_request(client *c, stream *s, size_t number)
{
    strbuf body = {0};
    workload_body(c->work, number, &body);
    strbuf_clear(&s->request);
    strbuf_append(&s->request, c->head.data, c->head.length);
    strbuf_printf(&s->request, "%zu\r\n\r\n", body.length);
    strbuf_append(&s->request, strbuf_text(&body), body.length);
    s->request.failed |= body.failed;
    strbuf_free(&body);
}

static void begin_request(client *c, stream *s)
{
    int64_t input, output;
    size_t number = c->next + (c->warming ? WORKLOAD_WARMUP : 0);
    workload_lengths(c->work, number, &input, &output);
    write_request(c, s, number);
    s->record = (load_record){.begun = c->arrivals ? c->arrivals[c->next & (c->ring - 1)] : now(c),
                              .input_tokens = (uint32_t)input,
                              .output_tokens = (uint32_t)output};
    c->next++;
    c->running++;
    if (s->request.failed) {
        qp_error error;
        error_no_memory(&error, "a request", s->request.length);
        stop_with(c, &error);
    } else {
        stream_begin(s);
    }
}

static void end_if_done(client *c)
{
    bool no_more = c->stopped || c->next == c->count;
    if (no_more && !c->running) event_base_loopbreak(c->shared.base);
}

/* Sends waiting requests as long as there are free streams. */
static void dispatch(client *c)
{
    stream *s;
    while (!c->stopped && c->next < c->arrived && (s = take_stream(c)))
        begin_request(c, s);
    end_if_done(c);
}

static bool keep_record(load_result *r, const stream *s)
{
    if (r->n_records == r->record_capacity) {
        size_t more = r->record_capacity ? 2 * r->record_capacity : 256;
        load_record *records = realloc(r->records, more * sizeof *records);
        if (!records) return false;
        r->records = records;
        r->record_capacity = more;
    }
    r->records[r->n_records++] = s->record;
    if (s->record.outcome != LOAD_DONE || !s->n_gaps) return true;
    if (r->n_gaps + s->n_gaps > r->gap_capacity) {
        size_t more = 2 * (r->n_gaps + s->n_gaps);
        float *gaps = realloc(r->gaps, more * sizeof *gaps);
        if (!gaps) return false;
        r->gaps = gaps;
        r->gap_capacity = more;
    }
    memcpy(r->gaps + r->n_gaps, s->gaps, s->n_gaps * sizeof *s->gaps);
    r->n_gaps += s->n_gaps;
    return true;
}

/* A stream rests for a tick after a failure, so that a server that is down is not flooded. */
static void on_ended(stream *s, load_outcome outcome, const qp_error *why)
{
    client *c = s->owner;
    load_result *r = c->result;
    stream **list = outcome == LOAD_DONE ? &c->idle : &c->resting;
    s->record.outcome = outcome;
    r->counts[outcome]++;
    if (outcome != LOAD_DONE && outcome != LOAD_DROPPED && r->first_failure.status == QP_OK)
        r->first_failure = *why;
    if (!keep_record(r, s)) {
        qp_error error;
        error_no_memory(&error, "the records", r->n_records * sizeof *r->records);
        stop_with(c, &error);
    }
    c->running--;
    c->done++;
    s->next = *list;
    *list = s;
    dispatch(c);
}

/* --- Time. --- */

/* Starts no more requests. If the caller cancels, running requests are ended as well. */
static void stop(client *c, bool drop)
{
    c->stopped = true;
    for (size_t i = 0; drop && i < c->n_streams; i++)
        if (c->streams[i]->busy) stream_abandon(c->streams[i], LOAD_DROPPED, NULL);
}

static void end_silent(client *c)
{
    uint64_t limit = (uint64_t)(c->options->timeout * 1e9), time = clock_ns();
    qp_error why;
    error_set(&why, QP_IO, "nothing came for %g seconds", c->options->timeout);
    for (size_t i = 0; limit && i < c->n_streams; i++) {
        stream *s = c->streams[i];
        if (s->busy && time > s->byte_ns && time - s->byte_ns > limit)
            stream_abandon(s, LOAD_TIMEOUT, &why);
    }
}

static void report(client *c)
{
    char text[160], total[32] = "";
    if (!c->options->progress || ++c->ticks % TICKS_A_REPORT) return;
    if (c->count != SIZE_MAX) snprintf(total, sizeof total, " of %zu", c->count);
    snprintf(text, sizeof text, "%s: %zu%s done, %zu running, %zu waiting",
             c->warming ? "warming up" : "requests", c->done, total, c->running,
             c->arrived == SIZE_MAX || !c->arrivals ? 0 : c->arrived - c->next);
    c->options->progress(c->options->progress_context, text, false);
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    client *c = context;
    (void)fd, (void)what;
    while (c->resting) {
        stream *s = c->resting;
        c->resting = s->next;
        s->next = c->idle;
        c->idle = s;
    }
    end_silent(c);
    if (c->options->cancel && *c->options->cancel)
        stop(c, true);
    else if (!c->warming && c->options->seconds > 0 && now(c) >= c->options->seconds)
        stop(c, false);
    report(c);
    dispatch(c);
}

/* Makes room in the ring for one more arrival; false: out of memory. */
static bool grow_ring(client *c)
{
    if (c->arrivals && c->arrived - c->next < c->ring) return true;
    size_t size = c->ring ? 2 * c->ring : 256;
    double *arrivals = calloc(size, sizeof *arrivals);
    if (!arrivals) return false;
    for (size_t i = c->next; i < c->arrived; i++)
        arrivals[i & (size - 1)] = c->arrivals[i & (c->ring - 1)];
    free(c->arrivals);
    c->arrivals = arrivals;
    c->ring = size;
    return true;
}

static void on_arrival(evutil_socket_t fd, short what, void *context)
{
    client *c = context;
    (void)fd, (void)what;
    while (c->arrived < c->count && c->next_arrival <= now(c)) {
        if (!grow_ring(c)) {
            qp_error error;
            error_no_memory(&error, "arrivals", c->ring * sizeof *c->arrivals);
            stop_with(c, &error);
            return;
        }
        c->arrivals[c->arrived++ & (c->ring - 1)] = c->next_arrival;
        if (c->arrived < c->count)
            c->next_arrival = workload_arrival(c->work, c->arrived, c->next_arrival);
    }
    if (c->arrived < c->count) {
        double wait = fmax(c->next_arrival - now(c), 0);
        struct timeval after = {(time_t)wait, (suseconds_t)((wait - floor(wait)) * 1e6)};
        event_add(c->arrival, &after);
    }
    dispatch(c);
}

/* --- Runs. --- */

static void begin_run(client *c, bool warmup)
{
    const load_options *o = c->options;
    bool arrivals = workload_has_arrivals(c->work) && !warmup;
    c->warming = warmup;
    c->stopped = false;
    c->next = c->arrived = c->done = 0;
    c->count = warmup ? (size_t)o->warmup : workload_count(c->work);
    c->max_streams = o->streams ? (size_t)o->streams : MOST_STREAMS;
    if (warmup && !o->streams) c->max_streams = 16;
    c->shared.begin_ns = clock_ns();
    if (arrivals) {
        c->next_arrival = workload_arrival(c->work, 0, 0);
        on_arrival(-1, 0, c);
    } else {
        c->arrived = c->count;
        dispatch(c);
    }
}

static qp_status end_run(client *c, qp_error *error)
{
    load_result *r = c->result;
    c->result->seconds = now(c);
    event_del(c->arrival);
    if (c->options->progress) c->options->progress(c->options->progress_context, "", true);
    if (c->error.status != QP_OK) {
        if (error) *error = c->error;
        return c->error.status;
    }
    if (c->options->cancel && *c->options->cancel)
        return error_set(error, QP_CANCELLED, "interrupted");
    if (!c->warming) return QP_OK;
    if (!r->counts[LOAD_DONE])
        return error_set(error, QP_IO, "no request of the warm-up was answered; the first: %s",
                         r->first_failure.message);
    r->n_records = r->n_gaps = 0;
    memset(r->counts, 0, sizeof r->counts);
    r->first_failure = (qp_error){0};
    return QP_OK;
}

qp_status client_run(client *c, bool warmup, qp_error *error)
{
    struct timeval tick = {0, TICK_US};
    event_add(c->tick, &tick);
    begin_run(c, warmup);
    if (c->error.status == QP_OK) event_base_dispatch(c->shared.base);
    event_del(c->tick);
    return end_run(c, error);
}

/* Each stream needs a file descriptor: raises the limit as far as the system allows. */
static void allow_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void write_head(client *c, const load_url *url)
{
    strbuf_printf(&c->head, "POST %s/v1/%s HTTP/1.1\r\nHost: %s\r\n", url->prefix,
                  c->options->chat ? "chat/completions" : "completions", url->authority);
    strbuf_puts(&c->head, "Content-Type: application/json\r\nAccept: text/event-stream\r\n");
    if (c->options->api_key)
        strbuf_printf(&c->head, "Authorization: Bearer %s\r\n", c->options->api_key);
    strbuf_puts(&c->head, "Content-Length: ");
}

/* epoll's timeouts are in milliseconds, which is too coarse for arrivals. */
static bool open_loop(client *c)
{
    struct event_config *config = event_config_new();
    if (!config) return false;
    event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    c->shared.base = event_base_new_with_config(config);
    event_config_free(config);
    if (!c->shared.base) return false;
    c->tick = event_new(c->shared.base, -1, EV_PERSIST, on_tick, c);
    c->arrival = event_new(c->shared.base, -1, 0, on_arrival, c);
    return c->tick && c->arrival;
}

qp_status client_open(const workload *w, const load_url *url, const server_facts *server,
                      load_result *result, client **out, qp_error *error)
{
    client *c = calloc(1, sizeof *c);
    *out = c;
    if (!c) return error_no_memory(error, "the client", sizeof *c);
    c->work = w;
    c->options = w->options;
    c->result = result;
    c->shared.address = server->address;
    c->shared.address_length = server->address_length;
    c->shared.buffer = malloc(STREAM_BUFFER);
    write_head(c, url);
    allow_descriptors();
    if (!c->shared.buffer || c->head.failed || !open_loop(c))
        return error_no_memory(error, "the client", STREAM_BUFFER);
    return QP_OK;
}

void client_close(client *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_streams; i++)
        stream_free(c->streams[i]);
    if (c->tick) event_free(c->tick);
    if (c->arrival) event_free(c->arrival);
    if (c->shared.base) event_base_free(c->shared.base);
    free(c->streams);
    free(c->arrivals);
    free(c->shared.buffer);
    strbuf_free(&c->head);
    free(c);
}
