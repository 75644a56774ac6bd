/* Text for a terminal as it comes: words that do not fit at the edge go to the next line whole, and
 * control characters, which could steer the terminal, become U+FFFD.
 *
 * A word is written at once; when it reaches the edge it is taken back and written on a new line.
 * Lines between ``` fences are code and stay as they are.
 */
#ifndef QUIPU_CLI_WORD_WRAP_H
#define QUIPU_CLI_WORD_WRAP_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise at the start of a line; word_wrap_free() at the end. */
typedef struct word_wrap {
    int column;     /* of the cursor */
    strbuf word;    /* the one being written */
    int word_width; /* its columns */
    int fence;      /* backquotes at the start of the line */
    bool in_line;   /* something else stood in the line */
    bool code;      /* within fences */
} word_wrap;

/* Appends to `out` what shows text[0 .. length), whole UTF-8 sequences, on `columns` columns. */
void word_wrap_put(word_wrap *w, const char *text, size_t length, int columns, strbuf *out);

void word_wrap_free(word_wrap *w);

#endif
