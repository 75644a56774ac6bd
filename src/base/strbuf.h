/* A growable byte string, always NUL-terminated once something was appended.
 *
 * A failed allocation sets `failed` and leaves the text as it was; callers that build a text in
 * many steps check it once at the end.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise to get an empty string. */
typedef struct strbuf {
    char *data; /* NULL until the first append */
    size_t length;
    size_t capacity;
    bool failed;
} strbuf;

bool strbuf_append(strbuf *buf, const void *bytes, size_t length);
bool strbuf_puts(strbuf *buf, const char *text);
bool strbuf_putc(strbuf *buf, char c);
bool strbuf_printf(strbuf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool strbuf_vprintf(strbuf *buf, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* Empties the text and keeps the memory. */
void strbuf_clear(strbuf *buf);

/* The text ("" when empty); owned by the buffer. */
const char *strbuf_text(const strbuf *buf);

/* Hands the text to the caller (to free()) and empties the buffer; NULL if `failed`. */
char *strbuf_take(strbuf *buf);

void strbuf_free(strbuf *buf);
