/* Text from files made fit for a terminal.
 *
 * Names and descriptions in model files may hold bytes that move a terminal's cursor, change its
 * title or reorder the line. Every message goes through here, and everything of a file that a
 * command prints as text.
 */
#ifndef QUIPU_BASE_PRINTABLE_H
#define QUIPU_BASE_PRINTABLE_H

#include "base/strbuf.h"

/* Appends the text with control characters (but line breaks and tabs), characters that change the
 * direction of text, and bytes that are not UTF-8 written as \xNN and \uNNNN. */
bool strbuf_put_printable(strbuf *out, const char *text, size_t length);

/* The same from `text` (NUL-terminated) into `out`, cut to `size` bytes with the NUL. */
void printable_copy(const char *text, char *out, size_t size);

#endif
