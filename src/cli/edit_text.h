/* The text and cursor of a message being edited: UTF-8, one or more lines. Independent of any
 * terminal.
 *
 * Positions are byte offsets between clusters. A cluster is what a person sees as one character,
 * such as a letter with its combining marks.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; strbuf_free(&text) at the end. */
typedef struct edit_text {
    strbuf text; /* valid UTF-8 */
    size_t cursor;
} edit_text;

/* Replaces everything; the cursor goes to the end. */
void edit_set(edit_text *t, const char *text, size_t length);

/* Inserts at the cursor, which goes past it. */
void edit_insert(edit_text *t, const char *text, size_t length);

/* Removes [from, to); the cursor goes to `from`. */
void edit_remove(edit_text *t, size_t from, size_t to);

/* Positions around `at`: one cluster, one word, the ends of the line. */
size_t edit_previous(const edit_text *t, size_t at);
size_t edit_next(const edit_text *t, size_t at);
size_t edit_word_left(const edit_text *t, size_t at);
size_t edit_word_right(const edit_text *t, size_t at);
size_t edit_line_start(const edit_text *t, size_t at);
size_t edit_line_end(const edit_text *t, size_t at);

/* Moves the cursor to the same column of the line above (or below); false where there is none. */
bool edit_up(edit_text *t);
bool edit_down(edit_text *t);

/* Swaps the clusters around the cursor, and moves past them. */
void edit_transpose(edit_text *t);

/* Appends pasted text: line breaks become \n, other control characters are removed, invalid UTF-8
 * becomes U+FFFD. */
void edit_clean(const char *bytes, size_t length, strbuf *out);

/* Bytes of the cluster at the start of text[0 .. length), length > 0, and the columns it takes on a
 * terminal. */
size_t edit_cluster(const char *text, size_t length, int *width);

/* Columns of a terminal that a code point takes; 0 for marks and control characters. */
int edit_width(uint32_t code_point);

/* Whether a message begins with """ and was not ended by them. */
bool edit_is_quoted(const char *text);

/* Removes the """ around a message. */
void edit_unquote(strbuf *text);
