/* Sockets: see http.h. Everything in this file runs on the I/O thread.
 *
 *     accept -> read a request -> on_request ... exchange in the outbox -> write -> next request
 *
 * A connection has one request at a time; if a client sends several at once, the others wait in
 * the buffer until it has read most of the replies before them. The thread keeps reading while a
 * request is answered, because only reading shows that a client has left.
 */
#include "server/exchange.h"

#include "base/platform.h"
#include "server/listen.h"
#include "server/tls.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long a client may take, in seconds. */
enum {
    HEAD_SECONDS = 30,  /* from the first byte of a request to the end of its head */
    BODY_SECONDS = 120, /* from there to the end of its body */
    IDLE_SECONDS = 75,  /* between requests */
    WRITE_SECONDS = 60, /* without reading anything of what is sent */
    LINGER_SECONDS = 2, /* to read a refusal, and to close */
};

enum { READ_MOST = 256 << 10, WRITE_LOW = 32 << 10 };
enum { RESERVED = 16 }; /* connections above the most, which only ask for /health */

/* Whose connections count together: an IPv4 address, or the network of an IPv6 address. */
typedef struct client {
    unsigned char network[8];
    bool is_local; /* of this computer: often a proxy for many clients */
} client;

typedef struct connection {
    http_server *server;
    client client;
    bool reserved;
    struct bufferevent *stream;
    struct event *deadline;
    http_parser parser;
    exchange *current; /* with a reference; NULL: none is being answered */
    bool begun;        /* bytes of the next request were received */
    bool lingering;    /* the last reply is being written; input is discarded */
    char address[64];  /* of the client */
    struct connection *previous, *next;
} connection;

struct http_server {
    http_options options;
    struct event_base *base;
    listeners listeners;
    struct event *outgoing, *pinging; /* NULL: no pings */
    outbox *box;
    connection *connections;
    size_t n_connections;
    bool draining;
};

static void connection_free(connection *c)
{
    http_server *s = c->server;
    if (c->current) {
        exchange *x = c->current;
        c->current = NULL;
        x->connection = NULL;
        exchange_leave(x);
        if (s->options.on_end) s->options.on_end(s->options.context, x);
        exchange_release(x);
    }
    if (c->previous)
        c->previous->next = c->next;
    else
        s->connections = c->next;
    if (c->next) c->next->previous = c->previous;
    s->n_connections--;
    event_free(c->deadline);
    http_parser_free(&c->parser);
    bufferevent_free(c->stream);
    free(c);
}

static void set_deadline(connection *c, int seconds)
{
    struct timeval time = {.tv_sec = seconds};
    event_add(c->deadline, &time);
}

/* Nothing more is sent. */
static void end_output(connection *c)
{
    if (c->server->options.tls) tls_end(c->stream);
    shutdown(bufferevent_getfd(c->stream), SHUT_WR);
}

/* Lets the client read the last reply, then ends the connection. Closing at once while the client
 * still sends would reset the connection, and the reply would be lost. */
static void linger(connection *c)
{
    c->lingering = true;
    set_deadline(c, LINGER_SECONDS);
    if (evbuffer_get_length(bufferevent_get_output(c->stream)) == 0) end_output(c);
}

/* Writes an error that the parser or this file found; the connection ends after it. */
static void refuse(connection *c, int status, const char *problem)
{
    struct evbuffer *out = bufferevent_get_output(c->stream);
    char body[256];
    int length = snprintf(body, sizeof body,
                          "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\","
                          "\"param\":null,\"code\":%d}}",
                          problem, status);
    evbuffer_add_printf(out,
                        "HTTP/1.1 %d %s\r\nServer: quipu\r\nContent-Type: application/json\r\n"
                        "Content-Length: %d\r\nConnection: close\r\n\r\n%s",
                        status, http_reason(status), length, body);
    linger(c);
}

/* Passes on a complete request; false: the connection was closed. */
static bool dispatch(connection *c)
{
    exchange *x = exchange_new(c->server->box, &c->parser, c->address);
    c->begun = false;
    if (!x) {
        refuse(c, 503, "out of memory");
        return true;
    }
    if (c->server->draining || c->reserved) x->keep_alive = false;
    event_del(c->deadline);
    c->current = x;
    x->connection = c;
    exchange_hold(x);
    c->server->options.on_request(c->server->options.context, x);
    return true;
}

/* Parses received bytes until a request is complete. */
static void read_requests(connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->stream),
                    *out = bufferevent_get_output(c->stream);
    if (c->lingering) {
        evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    while (!c->current && !c->lingering && evbuffer_get_length(in) &&
           evbuffer_get_length(out) <= WRITE_LOW) {
        struct evbuffer_iovec piece;
        http_state before = c->parser.state;
        evbuffer_peek(in, -1, NULL, &piece, 1);
        size_t taken = http_parser_feed(&c->parser, piece.iov_base, piece.iov_len);
        evbuffer_drain(in, taken);
        http_state state = c->parser.state;
        if (!c->begun) set_deadline(c, HEAD_SECONDS);
        c->begun = true;
        bool head_read = before <= HTTP_HEADERS && state > HTTP_HEADERS && state < HTTP_DONE;
        if (head_read) set_deadline(c, BODY_SECONDS);
        if (head_read && c->parser.expects_continue)
            bufferevent_write(c->stream, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        if (state == HTTP_REFUSED)
            refuse(c, c->parser.status, c->parser.problem);
        else if (state == HTTP_DONE && c->reserved && strcmp(c->parser.target, "/health") != 0)
            refuse(c, 503, "there are as many connections as the server takes");
        else if (state == HTTP_DONE)
            dispatch(c);
    }
}

static void on_read(struct bufferevent *stream, void *context)
{
    (void)stream;
    read_requests(context);
}

static void on_write(struct bufferevent *stream, void *context)
{
    connection *c = context;
    size_t unsent = evbuffer_get_length(bufferevent_get_output(stream));
    if (c->current) exchange_set_unsent(c->current, unsent);
    if (c->lingering && !unsent) end_output(c);
    read_requests(c);
}

static void on_event(struct bufferevent *stream, short events, void *context)
{
    (void)stream;
    connection *c = context;
    if (events & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) connection_free(c);
}

static void on_deadline(evutil_socket_t socket, short events, void *context)
{
    (void)socket, (void)events;
    connection *c = context;
    if (c->lingering || !c->begun)
        connection_free(c);
    else
        refuse(c, 408, "the request took too long to come");
}

/* ---- Accepting ----------------------------------------------------------------------------- */

static connection *connection_new(http_server *s, evutil_socket_t socket)
{
    connection *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s;
    c->parser.body_most = s->options.body_most;
    c->deadline = evtimer_new(s->base, on_deadline, c);
    c->stream = s->options.tls ? tls_accept(s->options.tls, s->base, socket)
                               : bufferevent_socket_new(s->base, socket, BEV_OPT_CLOSE_ON_FREE);
    if (!c->deadline || !c->stream) {
        if (c->deadline) event_free(c->deadline);
        if (c->stream) bufferevent_free(c->stream);
        free(c);
        return NULL;
    }
    c->next = s->connections;
    if (c->next) c->next->previous = c;
    s->connections = c;
    s->n_connections++;
    return c;
}

static client client_of(const struct sockaddr *address)
{
    client c = {.is_local = address->sa_family == AF_UNIX};
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        memcpy(c.network, &in->sin_addr, sizeof in->sin_addr);
        c.is_local = c.network[0] == 127;
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *in6 =
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        const bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(in6);
        memcpy(c.network, in6->s6_addr + (is_ipv4 ? 12 : 0), is_ipv4 ? 4 : sizeof c.network);
        c.is_local = IN6_IS_ADDR_LOOPBACK(in6) || (is_ipv4 && c.network[0] == 127);
    }
    return c;
}

static bool is_of(const connection *c, const client *whose)
{
    return !whose || memcmp(c->client.network, whose->network, sizeof whose->network) == 0;
}

static size_t connections_of(const http_server *s, const client *whose)
{
    size_t n = 0;
    for (const connection *c = s->connections; c; c = c->next)
        n += is_of(c, whose);
    return n;
}

/* Closes the oldest connection, of a client or (NULL) of all, that has no whole request and nothing
 * to read, so that clients which open many and send nothing keep nobody out. False: there is none.
 */
static bool make_room(http_server *s, const client *whose)
{
    connection *oldest = NULL;
    for (connection *c = s->connections; c; c = c->next) { /* newest first */
        const bool silent = !c->current && !c->lingering &&
                            evbuffer_get_length(bufferevent_get_output(c->stream)) == 0;
        if (silent && is_of(c, whose)) oldest = c;
    }
    if (oldest) connection_free(oldest);
    return oldest != NULL;
}

/* Whether a further connection of the client is taken. */
static bool admits(http_server *s, const client *whose)
{
    const size_t most = s->options.max_connections, asked = s->options.client_connections;
    const size_t of_client = asked ? asked : whose->is_local ? most : (most + 1) / 2;
    if (connections_of(s, whose) >= of_client && of_client < most && !make_room(s, whose))
        return false;
    if (s->n_connections >= most) make_room(s, NULL);
    return s->n_connections < most + RESERVED;
}

/* Refuses a connection that takes no memory. */
static void turn_away(evutil_socket_t socket)
{
    static const char reply[] =
        "HTTP/1.1 503 Service Unavailable\r\nServer: quipu\r\nContent-Length: 0\r\n"
        "Connection: close\r\n\r\n";
    send(socket, reply, sizeof reply - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(socket);
}

static void name_client(connection *c, const struct sockaddr *address, int length)
{
    const bool local = address->sa_family == AF_UNIX;
    if (local || getnameinfo(address, (socklen_t)length, c->address, sizeof c->address, NULL, 0,
                             NI_NUMERICHOST) != 0)
        snprintf(c->address, sizeof c->address, "unix");
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t socket,
                      struct sockaddr *address, int length, void *context)
{
    (void)listener;
    http_server *s = context;
    int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const client client = client_of(address);
    if (!admits(s, &client)) {
        turn_away(socket);
        return;
    }
    connection *c = connection_new(s, socket);
    if (!c) return;
    name_client(c, address, length);
    struct timeval patience = {.tv_sec = WRITE_SECONDS};
    c->client = client;
    c->reserved = s->n_connections > s->options.max_connections;
    bufferevent_setcb(c->stream, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->stream, EV_READ, 0, READ_MOST);
    bufferevent_setwatermark(c->stream, EV_WRITE, WRITE_LOW, 0);
    bufferevent_set_timeouts(c->stream, NULL, &patience);
    bufferevent_enable(c->stream, EV_READ | EV_WRITE);
    set_deadline(c, HEAD_SECONDS);
}

/* The process may have no descriptors left; accepting again at once would spin. */
static void on_listening_again(evutil_socket_t socket, short events, void *context)
{
    (void)socket, (void)events;
    http_server *s = context;
    listen_again(&s->listeners);
}

static void on_accept_error(struct evconnlistener *listener, void *context)
{
    http_server *s = context;
    struct timeval pause = {.tv_usec = 100000};
    evconnlistener_disable(listener);
    event_base_once(s->base, -1, EV_TIMEOUT, on_listening_again, s, &pause);
}

/* ---- Replies ------------------------------------------------------------------------------- */

/* The reply is complete: the connection goes on with the next request, or ends. */
static void end_exchange(connection *c, exchange *x)
{
    bool keep = x->keep_alive && !c->server->draining;
    c->current = NULL;
    x->connection = NULL;
    if (c->server->options.on_end) c->server->options.on_end(c->server->options.context, x);
    exchange_release(x);
    if (!keep) {
        linger(c);
        return;
    }
    set_deadline(c, IDLE_SECONDS);
    read_requests(c);
}

static void write_out(exchange *x)
{
    connection *c = x->connection;
    strbuf out = {0};
    pthread_mutex_lock(&x->lock);
    x->queued = false;
    out = x->out;
    x->out = (strbuf){0};
    bool ended = x->ended;
    if (c) {
        bufferevent_write(c->stream, strbuf_text(&out), out.length);
        x->unsent = evbuffer_get_length(bufferevent_get_output(c->stream));
    }
    pthread_mutex_unlock(&x->lock);
    bool failed = out.failed;
    strbuf_free(&out);
    if (c && failed)
        connection_free(c);
    else if (c && ended)
        end_exchange(c, x);
}

static void on_outgoing(evutil_socket_t event, short events, void *context)
{
    (void)events;
    http_server *s = context;
    platform_event_wait(event); /* a spurious wake finds an empty box */
    for (exchange *x; (x = outbox_take(s->box));) {
        write_out(x);
        exchange_release(x);
    }
}

/* Proxies and clients end streams that are silent for long, as those that wait for a slot are. */
static void on_ping(evutil_socket_t socket, short events, void *context)
{
    (void)socket, (void)events;
    const http_server *s = context;
    for (connection *c = s->connections; c; c = c->next)
        if (c->current) exchange_ping(c->current);
}

static qp_status start_pings(http_server *s, qp_error *error)
{
    const double seconds = s->options.ping_seconds;
    const struct timeval often = {(time_t)seconds, (suseconds_t)(fmod(seconds, 1) * 1e6)};
    if (seconds <= 0) return QP_OK;
    s->pinging = event_new(s->base, -1, EV_PERSIST, on_ping, s);
    if (s->pinging && event_add(s->pinging, &often) == 0) return QP_OK;
    return error_no_memory(error, "the server's events", 0);
}

/* ---- Opening and closing ------------------------------------------------------------------- */

static qp_status listen_at(http_server *s, qp_error *error)
{
    const http_options *o = &s->options;
    return listen_begin(&s->listeners, s->base, o->hosts, o->n_hosts, o->port, on_accept,
                        on_accept_error, s, error);
}

qp_status http_open(const http_options *options, struct event_base *base, http_server **out,
                    qp_error *error)
{
    http_server *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) return error_no_memory(error, "the server", sizeof *s);
    s->options = *options;
    s->base = base;
    s->box = outbox_open();
    if (s->box) s->outgoing = event_new(base, s->box->event, EV_READ | EV_PERSIST, on_outgoing, s);
    qp_status status = s->outgoing && event_add(s->outgoing, NULL) == 0
                           ? listen_at(s, error)
                           : error_no_memory(error, "the server's events", 0);
    if (status == QP_OK) status = start_pings(s, error);
    if (status == QP_OK) return QP_OK;
    http_close(s);
    *out = NULL;
    return status;
}

void http_disconnect(http_server *s)
{
    if (!s) return;
    while (s->connections)
        connection_free(s->connections);
    listen_end(&s->listeners);
}

void http_close(http_server *s)
{
    if (!s) return;
    http_disconnect(s);
    if (s->outgoing) event_free(s->outgoing);
    if (s->pinging) event_free(s->pinging);
    for (exchange *x; s->box && (x = outbox_take(s->box));)
        exchange_release(x);
    if (s->box) outbox_release(s->box);
    free(s);
}

int http_port(const http_server *s)
{
    return s->listeners.port;
}

size_t http_connections(const http_server *s)
{
    return s->n_connections;
}

void http_drain(http_server *s)
{
    s->draining = true;
    listen_end(&s->listeners);
    for (connection *c = s->connections, *next; c; c = next) {
        next = c->next;
        if (!c->current && !c->lingering) connection_free(c);
    }
}
