#include "load/event_stream.h"

#include <string.h>

/* Handles a line without its line break. An empty line ends the event. */
static qp_status take_line(event_stream *s, const char *line, size_t length, event_callback *event,
                           void *context, qp_error *error)
{
    static const char name[] = "data:";
    enum { NAME = sizeof name - 1 };
    if (!length) {
        if (!s->has_data) return QP_OK;
        qp_status status = event(context, strbuf_text(&s->data), s->data.length, error);
        strbuf_clear(&s->data);
        s->has_data = false;
        return status;
    }
    if (length < NAME || memcmp(line, name, NAME) != 0) return QP_OK;
    line += NAME, length -= NAME;
    if (length && *line == ' ') line++, length--;
    if (s->data.length + length > EVENT_MOST_BYTES)
        return error_set(error, QP_FORMAT, "an event of the server's answer has more than %d MiB",
                         EVENT_MOST_BYTES >> 20);
    if (s->has_data) strbuf_putc(&s->data, '\n');
    strbuf_append(&s->data, line, length);
    s->has_data = true;
    return s->data.failed ? error_no_memory(error, "an event", length) : QP_OK;
}

/* The first CR or LF; NULL: none. Servers usually write LF, so CR is searched only before it. */
static const char *find_break(const char *bytes, size_t length)
{
    const char *lf = memchr(bytes, '\n', length);
    const char *cr = memchr(bytes, '\r', lf ? (size_t)(lf - bytes) : length);
    return cr ? cr : lf;
}

static qp_status keep(event_stream *s, const char *bytes, size_t length, qp_error *error)
{
    if (s->line.length + length > EVENT_MOST_BYTES)
        return error_set(error, QP_FORMAT, "a line of the server's answer has more than %d MiB",
                         EVENT_MOST_BYTES >> 20);
    strbuf_append(&s->line, bytes, length);
    return s->line.failed ? error_no_memory(error, "a line", length) : QP_OK;
}

qp_status event_stream_read(event_stream *s, const char *bytes, size_t length,
                            event_callback *event, void *context, qp_error *error)
{
    const char *end = bytes + length;
    while (bytes < end) {
        if (s->after_cr && *bytes == '\n') bytes++;
        s->after_cr = false;
        if (bytes == end) break;
        const char *line_end = find_break(bytes, (size_t)(end - bytes));
        if (!line_end) return keep(s, bytes, (size_t)(end - bytes), error);
        s->after_cr = *line_end == '\r';
        if (s->line.length) {
            TRY(keep(s, bytes, (size_t)(line_end - bytes), error));
            qp_status status = take_line(s, s->line.data, s->line.length, event, context, error);
            strbuf_clear(&s->line);
            TRY(status);
        } else {
            TRY(take_line(s, bytes, (size_t)(line_end - bytes), event, context, error));
        }
        bytes = line_end + 1;
    }
    return QP_OK;
}

void event_stream_clear(event_stream *s)
{
    strbuf_clear(&s->line);
    strbuf_clear(&s->data);
    s->has_data = s->after_cr = false;
}

void event_stream_free(event_stream *s)
{
    strbuf_free(&s->line);
    strbuf_free(&s->data);
}
