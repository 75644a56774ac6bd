/* Text in memory that belongs to another object: a pointer and a length, without a NUL at the end.
 *
 * Names and strings of model files are used where they are in the mapping; nothing is copied. They
 * may hold any bytes: slice_quote() escapes them for a message.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct text_slice {
    const char *data; /* not NUL-terminated; may hold any byte */
    size_t length;
} text_slice;

static inline text_slice slice_of(const char *text)
{
    return (text_slice){text, strlen(text)};
}

static inline bool slice_equals(text_slice a, text_slice b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

static inline bool slice_is(text_slice slice, const char *text)
{
    return slice_equals(slice, slice_of(text));
}

/* Byte order, a shorter slice before its continuations. */
static inline int slice_compare(text_slice a, text_slice b)
{
    size_t shared = a.length < b.length ? a.length : b.length;
    int order = shared ? memcmp(a.data, b.data, shared) : 0;
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

enum { SLICE_QUOTE_SIZE = 96 };

/* Writes the slice into `text` for a message: control bytes and quotes as \xNN, "..." where it does
 * not fit. Returns `text`. */
const char *slice_quote(text_slice slice, char text[SLICE_QUOTE_SIZE]);
