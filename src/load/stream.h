/* One stream: a connection that carries one request after another, and the current request.
 *
 * A stream does not depend on other streams. The client gives it a request, and is called once when
 * the request has ended, with or without success.
 */
#pragma once

#include "load/answer.h"
#include "load/event_stream.h"
#include "load/http_reply.h"
#include "load/load.h"

#include <event2/event.h>
#include <sys/socket.h>

/* Data that all streams of a client share. */
typedef struct stream_shared {
    struct event_base *base;
    struct sockaddr_storage address;
    socklen_t address_length;
    uint64_t begin_ns; /* start of the run: times of records are relative to it */
    char *buffer;      /* [STREAM_BUFFER] for received bytes */
} stream_shared;

enum { STREAM_BUFFER = 256 << 10 };

typedef struct stream stream;

/* Called at the end of the request. The record is complete except for `outcome`, which is the
 * argument. */
typedef void stream_ended(stream *s, load_outcome outcome, const qp_error *why);

struct stream {
    stream_shared *shared;
    stream_ended *ended;
    void *owner;  /* argument of `ended` */
    stream *next; /* in one of the owner's lists */

    int fd; /* -1: no connection */
    struct event *readable, *writable;
    bool used; /* the connection has had an answer before, so the server may have closed it */
    bool busy;
    uint64_t byte_ns; /* time of the last received byte, or of sending */

    strbuf request; /* all bytes of the request */
    size_t sent;
    http_reply reply;
    event_stream events;
    answer answer;
    strbuf refusal; /* the body of an answer with another status than 200 */

    load_record record; /* of the current request */
    float *gaps;        /* [n_gaps] milliseconds between its events */
    size_t n_gaps, gap_capacity;
};

/* NULL: out of memory. */
stream *stream_new(stream_shared *shared, stream_ended *ended, void *owner);
void stream_free(stream *s);

/* Sends s->request; the caller has filled what s->record knows before. `ended` may be called before
 * this returns. */
void stream_begin(stream *s);

/* Ends the current request and the connection. */
void stream_abandon(stream *s, load_outcome outcome, const qp_error *why);
