/* The state of an exchange, shared by http.c and exchange.c. See http.h. */
#pragma once

#include "server/http.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct connection;

/* Exchanges that have something to write, and the eventfd that wakes the I/O thread. It lives until
 * the server and all exchanges are freed. */
typedef struct outbox {
    pthread_mutex_t lock;
    exchange *first, **last;
    int event;
    atomic_int references;
} outbox;

outbox *outbox_open(void); /* NULL: no memory, or no descriptor */
void outbox_release(outbox *box);

/* The oldest exchange of the box with its reference, or NULL. */
exchange *outbox_take(outbox *box);

struct exchange {
    atomic_int references;
    http_parser request;
    struct connection *connection; /* used by the I/O thread only; NULL: the client has left */
    outbox *box;
    bool head_only, chunked, keep_alive;
    uint64_t begun;  /* clock_ns() */
    char client[64]; /* its address */
    char id[65];
    char trace[56]; /* its header traceparent; "": none that is valid */

    pthread_mutex_t lock; /* protects all members below */
    strbuf headers;       /* "Name: value\r\n" */
    strbuf out;           /* not yet given to the connection */
    int status;           /* of the reply; 0: it has not begun */
    uint64_t bytes;       /* of its body */
    exchange_facts facts;
    size_t unsent; /* bytes that the connection has not written yet */
    bool queued;   /* in the outbox */
    bool ended, gone, paused;
    bool takes_pings, said; /* a stream of events; something was sent since the last ping */
    exchange_handler handler;
    exchange *next; /* in the outbox */
};

/* Takes the request over. */
exchange *exchange_new(outbox *box, http_parser *request, const char *client);

/* The client has left: calls the handler; nothing is queued afterwards. */
void exchange_leave(exchange *x);

/* Sends a comment if the reply is a stream of events that has been silent since the last call. */
void exchange_ping(exchange *x);

/* The connection has this many unwritten bytes left. */
void exchange_set_unsent(exchange *x, size_t unsent);
