/* Edits a message at a terminal: keys as in Emacs and in shells, history, completion, several
 * lines.
 *
 * Pasted text is inserted with its line breaks. Enter sends the message; Alt-Enter, or Enter after
 * a backslash, breaks the line. The message is redrawn when the terminal changes its size.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

/* Candidates that may replace text[start .. cursor). */
typedef struct completions {
    size_t start;
    strbuf words; /* each ends in a NUL */
    int count;
} completions;

/* Adds a candidate. A folder ends in a slash; any other complete candidate ends in a blank. */
void completions_add(completions *c, const char *word);

/* Finds candidates for the text before the cursor; `text` is the message up to there. */
typedef void line_completer(const char *text, completions *out);

typedef struct line_editor line_editor;

/* Starts editing at the terminal. `history`: a file, or NULL. */
qp_status line_editor_open(const char *history, line_completer *complete, line_editor **out,
                           qp_error *error);

typedef enum line_result {
    LINE_SENT,
    LINE_INTERRUPTED, /* Ctrl-C: the typed text is dropped */
    LINE_ENDED,       /* Ctrl-D on an empty message, or the terminal was closed */
} line_result;

/* Reads a message into `out`, which is emptied first. The terminal is in editing mode from before
 * the prompt is shown until the message is sent, and then in answer mode. */
line_result line_editor_read(line_editor *editor, strbuf *out);

/* Asks a question that is answered with y or n; true for y. */
bool line_editor_confirm(line_editor *editor, const char *question);

/* NULL is allowed. */
void line_editor_close(line_editor *editor);
