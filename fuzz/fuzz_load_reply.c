/* What `quipu load` reads of a server: a reply of HTTP and the events in it, in any pieces, are the
 * same. */
#include "load/event_stream.h"
#include "load/http_reply.h"

#include <stdlib.h>
#include <string.h>

/* What was read: a hash of all events, with their borders, and where the reply ended. */
typedef struct found {
    event_stream events;
    size_t count, taken;
    uint64_t hash;
    qp_status status;
    http_state state;
} found;

static qp_status take_event(void *context, const char *data, size_t length, qp_error *error)
{
    found *f = context;
    (void)error;
    f->count++;
    f->hash = (f->hash ^ length) * 1099511628211u;
    for (size_t i = 0; i < length; i++)
        f->hash = (f->hash ^ (unsigned char)data[i]) * 1099511628211u;
    return QP_OK;
}

static qp_status take_body(void *context, const char *bytes, size_t length, qp_error *error)
{
    found *f = context;
    return event_stream_read(&f->events, bytes, length, take_event, f, error);
}

static found read_in(const char *text, size_t size, size_t step)
{
    found f = {0};
    http_reply reply = {0};
    qp_error error = {0};
    while (f.status == QP_OK && f.taken < size && reply.state != HTTP_DONE) {
        const size_t n = step < size - f.taken ? step : size - f.taken;
        size_t used = 0;
        f.status = http_reply_read(&reply, text + f.taken, n, &used, take_body, &f, &error);
        if (used > n || (f.status == QP_OK && used < n && reply.state != HTTP_DONE)) abort();
        f.taken += used;
    }
    if (f.status == QP_OK) f.status = http_reply_close(&reply, &error);
    if (f.status != QP_OK && !*error.message) abort();
    f.state = reply.state;
    event_stream_free(&f.events);
    return f;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const found whole = read_in(text, size, size ? size : 1), pieces = read_in(text, size, 3);
    if (whole.status != pieces.status || whole.count != pieces.count || whole.hash != pieces.hash)
        abort();
    if (whole.status == QP_OK && (whole.taken != pieces.taken || whole.state != pieces.state))
        abort();
    return 0;
}
