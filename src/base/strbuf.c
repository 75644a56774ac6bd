/* A growable byte string: see strbuf.h. */
#include "base/strbuf.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(strbuf *buf, size_t more)
{
    size_t need;
    if (buf->failed) return false;
    if (!checked_add(buf->length, more, &need) || !checked_add(need, 1, &need)) goto fail;
    if (need <= buf->capacity) return true;
    size_t capacity = buf->capacity ? buf->capacity : 64;
    while (capacity < need) {
        if (!checked_mul(capacity, 2, &capacity)) goto fail;
    }
    char *data = realloc(buf->data, capacity);
    if (!data) goto fail;
    buf->data = data;
    buf->capacity = capacity;
    return true;
fail:
    buf->failed = true;
    return false;
}

bool strbuf_append(strbuf *buf, const void *bytes, size_t length)
{
    if (!reserve(buf, length)) return false;
    if (length) memcpy(buf->data + buf->length, bytes, length);
    buf->length += length;
    buf->data[buf->length] = '\0';
    return true;
}

bool strbuf_puts(strbuf *buf, const char *text)
{
    return strbuf_append(buf, text, strlen(text));
}

bool strbuf_putc(strbuf *buf, char c)
{
    return strbuf_append(buf, &c, 1);
}

bool strbuf_vprintf(strbuf *buf, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    const bool fits = length >= 0 && reserve(buf, (size_t)length);
    if (fits) {
        vsnprintf(buf->data + buf->length, (size_t)length + 1, format, again);
        buf->length += (size_t)length;
    }
    va_end(again);
    buf->failed |= !fits;
    return fits;
}

bool strbuf_printf(strbuf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const bool fits = strbuf_vprintf(buf, format, args);
    va_end(args);
    return fits;
}

void strbuf_clear(strbuf *buf)
{
    buf->length = 0;
    buf->failed = false;
    if (buf->data) buf->data[0] = '\0';
}

const char *strbuf_text(const strbuf *buf)
{
    return buf->data ? buf->data : "";
}

char *strbuf_take(strbuf *buf)
{
    if (!buf->data) strbuf_puts(buf, "");
    char *text = buf->failed ? NULL : buf->data;
    if (!text) free(buf->data);
    memset(buf, 0, sizeof *buf);
    return text;
}

void strbuf_free(strbuf *buf)
{
    free(buf->data);
    memset(buf, 0, sizeof *buf);
}
