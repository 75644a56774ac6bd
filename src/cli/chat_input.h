/* Lines from a person, with editing and history, or from a pipe. */
#ifndef QUIPU_CLI_CHAT_INPUT_H
#define QUIPU_CLI_CHAT_INPUT_H

#include "quipu.h"

typedef struct chat_input chat_input;

/* At a terminal, history is kept in the user's cache, and SIGINT is caught from here on. */
qp_status chat_input_open(chat_input **out, qp_error *error);

/* Whether a person types: standard input and output are a terminal. */
bool chat_input_is_terminal(const chat_input *input);

/* The next message without its line break, to free(); NULL at the end. A line that ends in a
 * backslash goes on in the next. At a terminal, Ctrl-C
 * gives an empty line. */
qp_status chat_input_read(chat_input *input, char **line, qp_error *error);

/* NULL is allowed. */
void chat_input_close(chat_input *input);

#endif
