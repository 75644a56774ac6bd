/* Reads server-sent events from bytes that arrive in pieces:
 * https://html.spec.whatwg.org/multipage/server-sent-events.html
 *
 * Only the data of events is used; names, ids and comments are ignored.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

enum { EVENT_MOST_BYTES = 64 << 20 };

/* Zero-initialise. Call event_stream_free() afterwards. */
typedef struct event_stream {
    strbuf line;   /* the received part of an incomplete line */
    strbuf data;   /* data of the incomplete event */
    bool has_data; /* a data line was received, perhaps an empty one */
    bool after_cr; /* the last byte was CR: a following LF belongs to the same line break */
} event_stream;

typedef qp_status event_callback(void *context, const char *data, size_t length, qp_error *error);

/* Calls the receiver with the data of each complete event. QP_FORMAT: an event has more than
 * EVENT_MOST_BYTES. */
qp_status event_stream_read(event_stream *stream, const char *bytes, size_t length,
                            event_callback *event, void *context, qp_error *error);

/* Resets the reader for another stream, and keeps its memory. */
void event_stream_clear(event_stream *stream);
void event_stream_free(event_stream *stream);
