/* Wraps a model's text for a terminal as it arrives. A word that does not fit at the edge moves to
 * the next line whole, and control characters, which could steer the terminal, become U+FFFD.
 *
 * A word is written at once; when it reaches the edge it is erased and written on a new line. Lines
 * between ``` fences are code and are not wrapped.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise at the start of a line; word_wrap_free() at the end. */
typedef struct word_wrap {
    int indent;     /* blanks before the rest of a line that was wrapped */
    int column;     /* column of the cursor */
    strbuf word;    /* the word being written */
    int word_width; /* its columns */
    int fence;      /* backquotes at the start of the line */
    bool in_line;   /* the line contains something else */
    bool code;      /* between fences */
} word_wrap;

/* Appends the bytes that show text[0 .. length), whole UTF-8 sequences, on `columns` columns. */
void word_wrap_put(word_wrap *w, const char *text, size_t length, int columns, strbuf *out);

/* Appends a sequence that takes no room, such as one that changes the style. */
void word_wrap_style(word_wrap *w, const char *sequence, strbuf *out);

void word_wrap_free(word_wrap *w);
