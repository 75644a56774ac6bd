/* Draws the message being edited on a terminal, below what was printed before it.
 *
 * Every row is drawn separately, so that nothing depends on how a terminal wraps lines. Of a
 * message with more rows than the terminal, the rows around the cursor are shown.
 */
#pragma once

#include "cli/edit_text.h"

/* A row of the terminal: text[start .. end). */
typedef struct screen_row {
    size_t start, end;
    int width;  /* columns, including the prompt or indentation */
    bool first; /* it begins a line of the text; else it continues the row above */
} screen_row;

/* Zero-initialise: nothing is drawn. screen_free() at the end. */
typedef struct edit_screen {
    screen_row *rows; /* [n_rows] of the whole message */
    int n_rows, capacity;
    int top, bottom;               /* rows[top .. bottom) are on the terminal */
    int cursor_row, cursor_column; /* index among rows; columns from 0 */
    int columns;                   /* columns of the terminal when it was drawn */
} edit_screen;

/* Appends the sequences that draw the message over what was drawn before: `prompt` before the first
 * line, ". " before other lines, blanks before continued rows. */
void screen_draw(edit_screen *s, const edit_text *t, const char *prompt, int columns, int lines,
                 strbuf *out);

/* Appends the sequence that moves the cursor below the message, which then counts as not drawn. */
void screen_leave(edit_screen *s, strbuf *out);

/* Forgets what was drawn, as when the terminal was cleared. */
void screen_forget(edit_screen *s);

void screen_free(edit_screen *s);
