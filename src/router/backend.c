/* A client of a process: see backend.h. */
#include "router/backend.h"

#include "load/http_reply.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PIECE = 64 << 10 };

struct backend {
    struct bufferevent *connection;
    http_reply reply;
    backend_receiver to;
    bool began, closed, in_call; /* closed within a call of the receiver: freed after it */
};

static void free_backend(backend *b)
{
    if (b->connection) bufferevent_free(b->connection);
    free(b);
}

void backend_close(backend *b)
{
    if (!b) return;
    b->closed = true;
    if (!b->in_call) free_backend(b);
}

static void begin(backend *b)
{
    if (b->began) return;
    b->began = true;
    const http_reply *r = &b->reply;
    const bool whole = r->state == HTTP_DONE || r->has_length;
    b->to.begin(b->to.context, r->status, whole && !r->chunked ? (long long)r->left : -1);
}

static qp_status on_body(void *context, const char *bytes, size_t length, qp_error *error)
{
    (void)error;
    backend *b = context;
    if (!b->closed) b->to.body(b->to.context, bytes, length);
    return b->closed ? QP_CANCELLED : QP_OK;
}

static void on_header(void *context, const char *line)
{
    backend *b = context;
    if (!b->closed) b->to.header(b->to.context, line);
}

static void end(backend *b, bool whole)
{
    b->to.end(b->to.context, whole);
    b->closed = true;
}

/* Up to the end of the head, so that `begin` comes before the body. */
static size_t head_length(const http_reply *r, const char *bytes, size_t length)
{
    if (r->state != HTTP_STATUS_LINE && r->state != HTTP_HEADER) return length;
    const char *line = memchr(bytes, '\n', length);
    return line ? (size_t)(line - bytes) + 1 : length;
}

static void read_some(backend *b, const char *bytes, size_t length)
{
    qp_error error;
    while (length && !b->closed && b->reply.state != HTTP_DONE) {
        size_t used;
        const qp_status status = http_reply_read(
            &b->reply, bytes, head_length(&b->reply, bytes, length), &used, on_body, b, &error);
        if (b->closed) return;
        if (status != QP_OK) {
            end(b, false);
            return;
        }
        bytes += used;
        length -= used;
        if (b->reply.state > HTTP_HEADER) begin(b);
    }
    if (!b->closed && b->reply.state == HTTP_DONE) end(b, true);
}

static void on_read(struct bufferevent *connection, void *context)
{
    backend *b = context;
    char bytes[PIECE];
    struct evbuffer *in = bufferevent_get_input(connection);
    b->in_call = true;
    while (!b->closed && evbuffer_get_length(in) &&
           (bufferevent_get_enabled(connection) & EV_READ)) {
        const int n = evbuffer_remove(in, bytes, sizeof bytes);
        if (n > 0) read_some(b, bytes, (size_t)n);
    }
    b->in_call = false;
    if (b->closed) free_backend(b);
}

static void on_event(struct bufferevent *connection, short events, void *context)
{
    backend *b = context;
    qp_error error;
    char bytes[PIECE];
    struct evbuffer *in = bufferevent_get_input(connection);
    if (!(events & (BEV_EVENT_EOF | BEV_EVENT_ERROR))) return;
    b->in_call = true;
    for (int n; !b->closed && (n = evbuffer_remove(in, bytes, sizeof bytes)) > 0;)
        read_some(b, bytes, (size_t)n);
    if (!b->closed) end(b, b->began && http_reply_close(&b->reply, &error) == QP_OK);
    b->in_call = false;
    free_backend(b);
}

backend *backend_open(struct event_base *base, const char *socket, const void *request,
                      size_t length, const backend_receiver *receiver)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    backend *b = calloc(1, sizeof *b);
    if (!b || strlen(socket) >= sizeof address.sun_path) return free(b), NULL;
    strcpy(address.sun_path, socket);
    b->to = *receiver;
    b->reply = (http_reply){.header = on_header, .header_context = b};
    b->connection =
        bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!b->connection) return free(b), NULL;
    bufferevent_setcb(b->connection, on_read, NULL, on_event, b);
    bufferevent_setwatermark(b->connection, EV_READ, 0, 4 * PIECE);
    if (bufferevent_write(b->connection, request, length) != 0 ||
        bufferevent_enable(b->connection, EV_READ | EV_WRITE) != 0 ||
        bufferevent_socket_connect(b->connection, (struct sockaddr *)&address, sizeof address) !=
            0) {
        free_backend(b);
        return NULL;
    }
    return b;
}

void backend_pause(backend *b, bool pauses)
{
    if (pauses)
        bufferevent_disable(b->connection, EV_READ);
    else
        bufferevent_enable(b->connection, EV_READ);
    if (!pauses && !b->in_call)
        bufferevent_trigger(b->connection, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
}
