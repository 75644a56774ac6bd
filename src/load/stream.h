/* One stream: a connection that is used for one request after the other, and the request under way.
 *
 * It knows nothing of the other streams. The client says what to send, and is called once when the
 * request has ended, however it ended.
 */
#ifndef QUIPU_LOAD_STREAM_H
#define QUIPU_LOAD_STREAM_H

#include "load/answer.h"
#include "load/event_stream.h"
#include "load/http_reply.h"
#include "load/load.h"

#include <event2/event.h>
#include <sys/socket.h>

/* What all streams of a client share. */
typedef struct stream_shared {
    struct event_base *base;
    struct sockaddr_storage address;
    socklen_t address_length;
    uint64_t begin_ns; /* the run's beginning, which records count from */
    char *buffer;      /* [STREAM_BUFFER] for what is received */
} stream_shared;

enum { STREAM_BUFFER = 256 << 10 };

typedef struct stream stream;

/* The request has ended: the record is filled, but for `outcome` of which it is the argument. */
typedef void stream_ended(stream *s, load_outcome outcome, const qp_error *why);

struct stream {
    stream_shared *shared;
    stream_ended *ended;
    void *owner;  /* for `ended` */
    stream *next; /* in a list of the owner's */

    int fd; /* -1: no connection */
    struct event *readable, *writable;
    bool used; /* the connection has brought an answer before: it may have been closed since */
    bool busy;
    uint64_t byte_ns; /* when the last byte came, or the request was sent */

    strbuf request; /* all of its bytes */
    size_t sent;
    http_reply reply;
    event_stream events;
    answer answer;
    strbuf refusal; /* the body of an answer that is not 200 */

    size_t index;       /* of the request in the workload */
    load_record record; /* of the request under way */
    float *gaps;        /* [n_gaps] milliseconds between its events */
    size_t n_gaps, gap_capacity;
};

/* NULL when memory is out. */
stream *stream_new(stream_shared *shared, stream_ended *ended, void *owner);
void stream_free(stream *s);

/* Sends s->request; s->record holds what is known of it. `ended` may be called before it returns.
 */
void stream_begin(stream *s);

/* Ends the request that is under way, and the connection. */
void stream_abandon(stream *s, load_outcome outcome, const qp_error *why);

#endif
