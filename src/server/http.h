/* The server's sockets: one thread accepts, reads requests, writes replies and notices clients that
 * leave. See http_parser.h for what a request may be.
 *
 * A complete request is an exchange. It is handed to `on_request`, and answered from any thread,
 * whole or as a stream. Bytes are queued in the exchange and written by the I/O thread, which an
 * eventfd wakes. If a client reads slowly, exchange_is_full() becomes true; on_room() is called
 * when the client has caught up.
 */
#pragma once

#include "base/status.h"
#include "server/http_parser.h"

#include <stdbool.h>
#include <stddef.h>

struct event_base;

typedef struct http_server http_server;
typedef struct exchange exchange;

typedef struct http_options {
    const char *const *hosts; /* [n_hosts]: names, addresses or unix sockets: see listen.h */
    size_t n_hosts;
    int port;                /* 0: one that is free */
    struct tls_context *tls; /* NULL: no TLS. It must outlive the server */
    size_t body_most;        /* bytes of a request's body */
    size_t max_connections;
    size_t client_connections; /* most of one client; 0: half of all, and all of this computer's */
    double ping_seconds; /* a stream of events says something at least so often; 0: not by itself */
    /* Receives every complete request, on the I/O thread, with a reference that is the callee's. It
     * must not block. */
    void (*on_request)(void *context, exchange *x);
    /* May be NULL. The reply of an exchange was written, or its client has left. */
    void (*on_end)(void *context, const exchange *x);
    void *context;
} http_options;

/* Listens. The options' texts are borrowed. To end: http_disconnect() closes all sockets, and
 * clients have left; http_close() frees the server when no thread answers any more. Both on the
 * thread of the event base, and NULL is allowed. */
qp_status http_open(const http_options *options, struct event_base *base, http_server **out,
                    qp_error *error);
void http_disconnect(http_server *server);
void http_close(http_server *server);

/* The port that it listens on; 0: only unix sockets. */
int http_port(const http_server *server);

/* Accepts no more connections, and closes each one when its current request has been answered. */
void http_drain(http_server *server);

/* Connections that are open. */
size_t http_connections(const http_server *server);

/* ---- An exchange: from any thread with a reference ------------------------------------------- */

void exchange_hold(exchange *x);
void exchange_release(exchange *x);

const http_parser *exchange_request(const exchange *x);

/* The id of the request: that of its header X-Request-Id, or a random one. Replies have it, too. */
const char *exchange_id(const exchange *x);

/* The status of the reply; 0: it has not begun. */
int exchange_status(const exchange *x);

/* Removes the beginning of the request's path; false: it begins otherwise. On the I/O thread. */
bool exchange_strip(exchange *x, const char *prefix);

/* What an exchange was about, for the access log. Seconds. */
typedef struct exchange_facts {
    bool known;
    size_t prompt, cached, made; /* tokens */
    double queued, reading, making;
} exchange_facts;
void exchange_set_facts(exchange *x, const exchange_facts *facts);

/* Adds a header ("Name: value") to the reply. Call it before the reply begins. */
void exchange_add_header(exchange *x, const char *header);

/* The whole reply. `type`: its Content-Type. */
void exchange_reply(exchange *x, int status, const char *type, const void *body, size_t length);

/* A reply in pieces: begin with its status, send, end. Sending to a client that has left does
 * nothing. */
void exchange_begin(exchange *x, int status, const char *type);
void exchange_send(exchange *x, const void *bytes, size_t length);
void exchange_end(exchange *x);

/* Whether the client has left. */
bool exchange_is_gone(exchange *x);

/* Whether the client has too many unread bytes to send more. If so, on_room() is called later. */
bool exchange_is_full(exchange *x);

/* What a handler keeps with the exchange. on_gone: the client has left; on_room: see above; both
 * are called on the I/O thread (or at once, where the client has left already) and must not block.
 * free_context: with the last reference. */
typedef struct exchange_handler {
    void *context;
    void (*on_gone)(void *context);
    void (*on_room)(void *context);
    void (*free_context)(void *context);
} exchange_handler;
void exchange_set_handler(exchange *x, const exchange_handler *handler);

/* "Not Found", ... */
const char *http_reason(int status);
