/* An exchange from the inside: what http.c and exchange.c share. See http.h. */
#ifndef QUIPU_SERVER_EXCHANGE_H
#define QUIPU_SERVER_EXCHANGE_H

#include "server/http.h"

#include <pthread.h>
#include <stdatomic.h>

struct connection;

/* Exchanges that have something to write, and the eventfd that tells the I/O thread. It outlives
 * the server as long as an exchange does. */
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
    struct connection *connection; /* of the I/O thread; NULL: the client has left */
    outbox *box;
    bool head_only, chunked, keep_alive;

    pthread_mutex_t lock; /* for all below */
    strbuf headers;       /* "Name: value\r\n" */
    strbuf out;           /* not yet given to the connection */
    size_t unsent;        /* bytes that the connection has not written yet */
    bool queued;          /* in the outbox */
    bool ended, gone, paused;
    exchange_handler handler;
    exchange *next; /* in the outbox */
};

exchange *exchange_new(outbox *box, http_parser *request); /* takes the request over */

/* The client has left: the handler is told, and nothing is queued from now on. */
void exchange_leave(exchange *x);

/* So many bytes are left in the connection. */
void exchange_set_unsent(exchange *x, size_t unsent);

#endif
