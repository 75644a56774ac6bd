/* Edits a message at a terminal: keys as in Emacs and in shells, history, completion, several
 * lines.
 *
 * Pasted text goes into the message with its line breaks; Enter sends the message, Alt-Enter breaks
 * a line, and so does Enter after a backslash. The message is drawn anew when the terminal changes
 * its size.
 */
#ifndef QUIPU_CLI_LINE_EDITOR_H
#define QUIPU_CLI_LINE_EDITOR_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

/* What could stand in place of text[start .. cursor). */
typedef struct completions {
    size_t start;
    strbuf words; /* each ends in a NUL */
    int count;
} completions;

/* Adds a candidate; a folder ends in a slash, anything else that is complete in a blank. */
void completions_add(completions *c, const char *word);

/* Finds candidates for what stands before the cursor: `text` is the message up to there. */
typedef void line_completer(const char *text, completions *out);

typedef struct line_editor line_editor;

/* Takes the terminal over. `history`: a file, or NULL. */
qp_status line_editor_open(const char *history, line_completer *complete, line_editor **out,
                           qp_error *error);

typedef enum line_result {
    LINE_SENT,
    LINE_INTERRUPTED, /* Ctrl-C: what was typed is dropped */
    LINE_ENDED,       /* Ctrl-D on an empty message, or the terminal has gone */
} line_result;

/* Reads a message into `out`, which is emptied first. The terminal is in editing mode from before
 * the prompt is shown; afterwards in the mode for answers. */
line_result line_editor_read(line_editor *editor, strbuf *out);

/* Asks a question to be answered by y or n; true for y. */
bool line_editor_confirm(line_editor *editor, const char *question);

/* NULL is allowed. */
void line_editor_close(line_editor *editor);

#endif
