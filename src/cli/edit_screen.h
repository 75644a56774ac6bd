/* The message being edited, drawn on a terminal below what was printed before it.
 *
 * Every row is drawn on its own, so that nothing depends on how a terminal wraps lines. A message
 * of more rows than the terminal has is shown around the cursor.
 */
#ifndef QUIPU_CLI_EDIT_SCREEN_H
#define QUIPU_CLI_EDIT_SCREEN_H

#include "cli/edit_text.h"

/* A row of the terminal: text[start .. end). */
typedef struct screen_row {
    size_t start, end;
    int width;  /* columns, with what stands before the text */
    bool first; /* of a line of the text; else the line goes on from the row above */
} screen_row;

/* Zero-initialise: nothing is drawn. screen_free() at the end. */
typedef struct edit_screen {
    screen_row *rows; /* [n_rows] of the whole message */
    int n_rows, capacity;
    int top, bottom;               /* rows[top .. bottom) are on the terminal */
    int cursor_row, cursor_column; /* among rows; columns from 0 */
    int columns;                   /* of the terminal when it was drawn */
} edit_screen;

/* Appends to `out` what draws the message in place of what was drawn before: `prompt` stands before
 * the first line, ". " before others, blanks before rows that go on. */
void screen_draw(edit_screen *s, const edit_text *t, const char *prompt, int columns, int lines,
                 strbuf *out);

/* Appends what moves the cursor below the message; nothing is drawn from then on. */
void screen_leave(edit_screen *s, strbuf *out);

/* Forgets what was drawn, as when the terminal was cleared. */
void screen_forget(edit_screen *s);

void screen_free(edit_screen *s);

#endif
