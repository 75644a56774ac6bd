/* The terminal of a conversation: its modes, its size, and the signals that concern it.
 *
 * However the process ends, the terminal gets back the mode that it had.
 */
#pragma once

#include "base/status.h"
#include "cli/word_wrap.h"

#include <stdbool.h>

typedef enum terminal_mode {
    TERMINAL_AS_FOUND,
    TERMINAL_EDITING,   /* every byte is read at once, Ctrl-C and Ctrl-Z included */
    TERMINAL_ANSWERING, /* typed text is not shown and waits; Ctrl-C is SIGINT, Ctrl-Z stops the
                           process */
} terminal_mode;

/* Whether standard input and output are a terminal that understands escape sequences. */
bool terminal_can_edit(void);

/* Starts using the terminal of standard input; saves its mode. */
qp_status terminal_open(qp_error *error);
void terminal_set_mode(terminal_mode mode);
void terminal_close(void);

/* Columns and lines of the terminal of standard output; 80 and 24 where it does not say. */
void terminal_size(int *columns, int *lines);

/* Stops the process as Ctrl-Z does, with the terminal's original mode, and continues in the current
 * mode. */
void terminal_suspend(void);

/* Reads a byte of standard input: a key_source. SIGINT and a change of size end the wait. */
int terminal_read_byte(void *context, int timeout_ms);

/* Sets the C library's locale, so that it knows which bytes make a character, and how wide it
 * is. */
void terminal_use_utf8(void);

/* Whether standard output is a terminal with escape sequences, on which answers are drawn. */
bool terminal_draws(void);

/* Writes a model's text to standard output. At a terminal with escape sequences, words wrap at its
 * edge and control characters are replaced; elsewhere the text is written unchanged. `wrap` keeps
 * the state of the line. */
qp_status terminal_show_text(word_wrap *wrap, const char *text, size_t length, qp_error *error);

/* Writes a line to standard error. At a terminal with escape sequences, words wrap at its edge, and
 * go on after `indent` blanks. */
void terminal_note(int indent, const char *text);

/* The same for a text that is made as by printf(), without an indent. */
void terminal_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for a row of a list: a word or two, then what they do, in columns where there is room.
 */
void terminal_note_row(const char *name, const char *help);

/* Writes to standard output without stdio. */
void terminal_write(const char *bytes, size_t length);
