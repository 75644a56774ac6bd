/* Messages from a person, edited at a terminal, or lines from a pipe. */
#pragma once

#include "cli/line_editor.h"
#include "quipu.h"

typedef struct chat_input chat_input;

/* At a terminal, the history is kept in the user's state folder, and SIGINT is caught from here
 * on. */
qp_status chat_input_open(line_completer *complete, chat_input **out, qp_error *error);

/* Whether a person types: standard input and output are both terminals. */
bool chat_input_is_terminal(const chat_input *input);

/* The next message without its line break, to free(); NULL at the end. From a pipe, and at a
 * terminal without escape sequences, a message is one line; a backslash at its end continues it in
 * the next line. At a terminal, Ctrl-C gives an empty message. */
qp_status chat_input_read(chat_input *input, char **message, qp_error *error);

/* Asks a person a question that is answered with y or n. From a pipe the answer is yes, because a
 * script cannot be asked. */
bool chat_input_confirm(chat_input *input, const char *question);

/* NULL is allowed. */
void chat_input_close(chat_input *input);
