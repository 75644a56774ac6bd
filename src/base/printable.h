/* Escapes text from files for a terminal.
 *
 * Names and descriptions in model files may hold bytes that move a terminal's cursor, change its
 * title or reorder the line. Every message, and every text of a file that a command prints, is
 * escaped here.
 */
#pragma once

#include "base/strbuf.h"

/* Appends the text. Control characters (except line breaks and tabs), characters that change the
 * direction of text, and bytes that are not UTF-8 are written as \xNN or \uNNNN. */
bool strbuf_put_printable(strbuf *out, const char *text, size_t length);

/* The same from `text` (NUL-terminated) into `out`, cut to `size` bytes with the NUL. */
void printable_copy(const char *text, char *out, size_t size);
