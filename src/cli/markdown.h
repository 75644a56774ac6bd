/* Draws Markdown on a terminal as it arrives: headings, emphasis, code, lists, quotes, rules, and
 * tables at the window's width. Nothing that was shown changes later, except that a word at the
 * edge moves to the next line: what may still turn out to be a mark is held back, at most to the
 * end of its line.
 *
 * Lines between ``` fences are code and are shown as they are. What is no Markdown stays text.
 */
#pragma once

#include "cli/word_wrap.h"

enum {
    MARKDOWN_BOLD = 1,
    MARKDOWN_DIM = 2,
    MARKDOWN_ITALIC = 4,
    MARKDOWN_CODE = 8,
    MARKDOWN_STRUCK = 16,
};

enum { MARKDOWN_MOST_COLUMNS = 16 }; /* of a table that is drawn */

typedef enum markdown_side { MARKDOWN_LEFT, MARKDOWN_MIDDLE, MARKDOWN_RIGHT } markdown_side;

/* Zero-initialise at the start of a text; markdown_free() at the end. */
typedef struct markdown {
    word_wrap wrap;
    unsigned base; /* styles of all text */
    bool colourless;
    unsigned style; /* that the terminal has */
    strbuf line;    /* of the current line, what was not shown yet */
    bool begun;     /* what the line is, is known: the rest of it is text, or code */
    unsigned mask;  /* styles of that text */
    char before;    /* its last byte that was shown */
    int fence;      /* backquotes that opened the code; 0: outside */
    /* A table: its heading and the row below that, until the widths are known. */
    strbuf heading, rule;
    int widths[MARKDOWN_MOST_COLUMNS], n_columns;
    markdown_side sides[MARKDOWN_MOST_COLUMNS]; /* where the columns' text stands */
} markdown;

/* Appends the bytes that show text[0 .. length), whole UTF-8 sequences, on `columns` columns. */
void markdown_put(markdown *m, const char *text, size_t length, int columns, strbuf *out);

/* There is no more text: shows what was held back. The line is not ended. */
void markdown_end(markdown *m, int columns, strbuf *out);

void markdown_free(markdown *m);

/* ---- for the parts of the renderer --------------------------------------------------------- */

/* Receives text of one style. */
typedef void markdown_sink(void *context, unsigned mask, const char *text, size_t length);

/* Hands text on without the marks that change its style. `before`: the byte before it. Returns how
 * much was handed on: without `whole`, a mark whose end may still arrive is left. */
size_t markdown_spans(const char *text, size_t length, char before, unsigned mask, bool whole,
                      markdown_sink *sink, void *context);

/* Shows text in a style. */
void markdown_show(markdown *m, unsigned mask, const char *text, size_t length, int columns,
                   strbuf *out);

/* Takes a whole line that begins with "|"; false if it belongs to no table. */
bool markdown_table_line(markdown *m, int columns, strbuf *out);

/* Shows what a table held back, when another line follows. */
void markdown_table_end(markdown *m, int columns, strbuf *out);
