/* Finds stop texts in a stream: see stop_text.h. */
#define _GNU_SOURCE /* memmem */
#include "engine/stop_text.h"

#include <string.h>

/* Bytes of the longest end of `text` that begins `stop` without completing it. */
static size_t unfinished(const char *text, size_t length, const char *stop)
{
    size_t most = strlen(stop) - 1;
    for (size_t n = most < length ? most : length; n > 0; n--) {
        if (memcmp(text + length - n, stop, n) == 0) return n;
    }
    return 0;
}

size_t stop_text_scan(stop_text *s)
{
    const char *text = strbuf_text(&s->pending);
    size_t length = s->pending.length, held = 0, cut = length;
    for (size_t i = 0; i < s->n_stops; i++) {
        const char *at = memmem(text, length, s->stops[i], strlen(s->stops[i]));
        if (at && (size_t)(at - text) < cut) {
            cut = (size_t)(at - text);
            s->found = s->stops[i];
        }
        size_t n = unfinished(text, length, s->stops[i]);
        if (n > held) held = n;
    }
    if (!s->found) return length - held;
    s->pending.length = cut;
    if (s->pending.data) s->pending.data[cut] = '\0';
    return cut;
}

void stop_text_consume(stop_text *s, size_t count)
{
    if (count == 0) return;
    s->pending.length -= count;
    memmove(s->pending.data, s->pending.data + count, s->pending.length + 1);
}
