#include "load/stream.h"

#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Events with text: some servers send each character alone, and some words before the first. */
enum { REFUSAL_MOST = 64 << 10, EVENTS_A_TOKEN = 16, MORE_EVENTS = 1000 };

static double seconds_of(const stream *s, uint64_t ns)
{
    return ((double)ns - (double)s->shared->begin_ns) * 1e-9;
}

static void disconnect(stream *s)
{
    if (s->readable) event_free(s->readable);
    if (s->writable) event_free(s->writable);
    if (s->fd >= 0) close(s->fd);
    s->readable = s->writable = NULL;
    s->fd = -1;
    s->used = false;
}

void stream_abandon(stream *s, load_outcome outcome, const qp_error *why)
{
    disconnect(s);
    s->busy = false;
    s->ended(s, outcome, why);
}

static void fail(stream *s, const char *what, int code)
{
    qp_error why;
    error_set(&why, QP_IO, "%s: %s", what, strerror(code));
    stream_abandon(s, LOAD_BROKEN, &why);
}

/* --- Receiving. --- */

static bool keep_gap(stream *s, double milliseconds)
{
    if (s->n_gaps == s->gap_capacity) {
        size_t more = s->gap_capacity ? 2 * s->gap_capacity : 128;
        float *gaps = realloc(s->gaps, more * sizeof *gaps);
        if (!gaps) return false;
        s->gaps = gaps;
        s->gap_capacity = more;
    }
    s->gaps[s->n_gaps++] = (float)milliseconds;
    return true;
}

/* Handles the data of one event. All events of one recv() have the same time. */
static qp_status take_event(void *context, const char *data, size_t length, qp_error *error)
{
    stream *s = context;
    TRY(answer_read(&s->answer, data, length, error));
    if (!s->answer.text) return QP_OK;
    if (s->record.events >= (uint64_t)EVENTS_A_TOKEN * s->record.output_tokens + MORE_EVENTS)
        return error_set(error, QP_FORMAT,
                         "the server's answer has more than %llu events with text, and %u tokens "
                         "were asked for",
                         (unsigned long long)s->record.events, (unsigned)s->record.output_tokens);
    double now = seconds_of(s, s->byte_ns);
    if (s->record.events++ == 0)
        s->record.first = now;
    else if (!keep_gap(s, (now - s->record.last) * 1e3))
        return error_no_memory(error, "times", s->n_gaps * sizeof *s->gaps);
    s->record.last = now;
    return QP_OK;
}

static qp_status take_body(void *context, const char *bytes, size_t length, qp_error *error)
{
    stream *s = context;
    if (s->reply.status == 200)
        return event_stream_read(&s->events, bytes, length, take_event, s, error);
    size_t room = REFUSAL_MOST - s->refusal.length;
    strbuf_append(&s->refusal, bytes, length < room ? length : room);
    return QP_OK;
}

static load_outcome judge(stream *s, qp_error *why)
{
    if (s->reply.status != 200) {
        answer_refused(s->reply.status, strbuf_text(&s->refusal), s->refusal.length, why);
        return LOAD_REFUSED;
    }
    if (!s->answer.finished && !s->answer.done) {
        error_set(why, QP_FORMAT, "the server's answer ended without finish_reason and [DONE]");
        return LOAD_UNCLEAR;
    }
    if (!s->record.events) {
        error_set(why, QP_FORMAT, "the server's answer holds no events with text");
        return LOAD_UNCLEAR;
    }
    return LOAD_DONE;
}

/* Handles the end of the reply. */
static void end_reply(stream *s)
{
    qp_error why = {0};
    load_outcome outcome = judge(s, &why);
    if (s->answer.has_usage) {
        s->record.input_tokens = s->answer.input_tokens;
        s->record.output_tokens = s->answer.output_tokens;
        s->record.cached_tokens = s->answer.cached_tokens;
    } else {
        s->record.output_tokens = s->record.events;
    }
    if (s->reply.close || s->sent < s->request.length) disconnect(s);
    s->used = s->fd >= 0;
    s->busy = false;
    s->ended(s, outcome, &why);
}

static void connect_again(stream *s)
{
    disconnect(s);
    stream_begin(s);
}

/* A server may close an idle connection at the moment when the next request is sent. The request is
 * sent again only in this case, and only if no byte of an answer was received. */
static void end_of_connection(stream *s, int code)
{
    qp_error why = {0};
    if (!s->busy) {
        disconnect(s);
    } else if (s->used && s->reply.state == HTTP_STATUS_LINE && !s->reply.in_line) {
        connect_again(s);
    } else if (code) {
        fail(s, "the connection broke", code);
    } else if (http_reply_close(&s->reply, &why) == QP_OK) {
        end_reply(s);
    } else {
        stream_abandon(s, LOAD_BROKEN, &why);
    }
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    stream *s = context;
    qp_error why = {0};
    size_t used;
    (void)what;
    ssize_t n = recv(fd, s->shared->buffer, STREAM_BUFFER, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        end_of_connection(s, n < 0 ? errno : 0);
        return;
    }
    if (!s->busy) { /* bytes without a request */
        disconnect(s);
        return;
    }
    s->byte_ns = clock_ns();
    if (http_reply_read(&s->reply, s->shared->buffer, (size_t)n, &used, take_body, s, &why) !=
        QP_OK) {
        load_outcome outcome = why.status == QP_INVALID ? LOAD_REFUSED : LOAD_UNCLEAR;
        stream_abandon(s, outcome, &why);
    } else if (s->reply.state == HTTP_DONE) {
        if (used < (size_t)n) s->reply.close = true;
        end_reply(s);
    }
}

/* --- Sending. --- */

static void send_rest(stream *s)
{
    while (s->sent < s->request.length) {
        ssize_t n =
            send(s->fd, s->request.data + s->sent, s->request.length - s->sent, MSG_NOSIGNAL);
        if (n > 0) {
            s->sent += (size_t)n;
        } else if (errno == EAGAIN) {
            if (event_add(s->writable, NULL) != 0) fail(s, "sending", ENOMEM);
            return;
        } else if (errno != EINTR) {
            return; /* the readable event reports this too, after an early answer such as 413 */
        }
    }
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    stream *s = context;
    int code = 0;
    socklen_t size = sizeof code;
    (void)what;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) == 0 && code) {
        fail(s, "connecting", code);
        return;
    }
    send_rest(s);
}

/* Starts to connect. The writable event reports that the connection is made. */
static int connect_now(stream *s)
{
    stream_shared *h = s->shared;
    int on = 1;
    s->fd = socket(h->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0) return errno;
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(s->fd, (struct sockaddr *)&h->address, h->address_length) != 0 &&
        errno != EINPROGRESS)
        return errno;
    s->readable = event_new(h->base, s->fd, EV_READ | EV_PERSIST, on_readable, s);
    s->writable = event_new(h->base, s->fd, EV_WRITE, on_writable, s);
    if (!s->readable || !s->writable || event_add(s->readable, NULL) != 0 ||
        event_add(s->writable, NULL) != 0)
        return ENOMEM;
    return 0;
}

void stream_begin(stream *s)
{
    s->busy = true;
    s->sent = 0;
    s->reply = (http_reply){0};
    s->answer = (answer){0};
    s->n_gaps = 0;
    event_stream_clear(&s->events);
    strbuf_clear(&s->refusal);
    s->byte_ns = clock_ns();
    if (s->fd >= 0) {
        send_rest(s);
        return;
    }
    int code = connect_now(s);
    if (code) fail(s, "connecting", code);
}

stream *stream_new(stream_shared *shared, stream_ended *ended, void *owner)
{
    stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->shared = shared;
    s->ended = ended;
    s->owner = owner;
    s->fd = -1;
    return s;
}

void stream_free(stream *s)
{
    disconnect(s);
    strbuf_free(&s->request);
    strbuf_free(&s->refusal);
    event_stream_free(&s->events);
    free(s->gaps);
    free(s);
}
