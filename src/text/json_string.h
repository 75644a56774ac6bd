/* Text as a JSON string, and JSON by formats. */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"

#include <stdarg.h>

/* Appends the string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void json_put_string(strbuf *out, const char *text, size_t length);

/* Appends JSON by a format, in which ' stands for a quotation mark:
 *
 *     %q const char *          a text as a string; NULL: null
 *     %Q const char *, size_t  the same with its length
 *     %s const char *          as it is
 *     %t const strbuf *        what it holds; if it has failed, so has the output
 *     %j const cJSON *         a tree; NULL: null
 *     %b int                   true or false
 *     %d int, %z size_t, %i int64_t, %g double
 */
void json_put(strbuf *out, const char *format, ...);
void json_vput(strbuf *out, const char *format, va_list args);

/* The tree of what json_put() would append, to cJSON_Delete(); NULL: no memory. Numbers keep their
 * digits. */
cJSON *json_make(const char *format, ...);
