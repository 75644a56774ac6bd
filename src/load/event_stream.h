/* Server-sent events as their bytes come:
 * https://html.spec.whatwg.org/multipage/server-sent-events.html
 *
 * Only the data of events counts here; names, ids and comments are read past.
 */
#ifndef QUIPU_LOAD_EVENT_STREAM_H
#define QUIPU_LOAD_EVENT_STREAM_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

enum { EVENT_MOST_BYTES = 64 << 20 };

/* Zero-initialise; event_stream_free() after use. */
typedef struct event_stream {
    strbuf line;   /* what has come of a line that is not whole yet */
    strbuf data;   /* of the event that is not whole yet */
    bool has_data; /* a data line came, maybe an empty one */
    bool after_cr; /* a line break of two bytes may be cut between them */
} event_stream;

typedef qp_status event_callback(void *context, const char *data, size_t length, qp_error *error);

/* Hands out the data of each event that is whole. QP_FORMAT for an event of more than
 * EVENT_MOST_BYTES. */
qp_status event_stream_read(event_stream *stream, const char *bytes, size_t length,
                            event_callback *event, void *context, qp_error *error);

/* For another stream; the memory is kept. */
void event_stream_clear(event_stream *stream);
void event_stream_free(event_stream *stream);

#endif
