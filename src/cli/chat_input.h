/* Lines from a person, with editing and history, or from a pipe. */
#ifndef QUIPU_CLI_CHAT_INPUT_H
#define QUIPU_CLI_CHAT_INPUT_H

#include "quipu.h"

typedef struct chat_input chat_input;

/* At a terminal, history is kept in the user's cache. */
qp_status chat_input_open(chat_input **out, qp_error *error);

/* The next message without its line break, to free(); NULL at the end. A line that ends in a
 * backslash goes on in the next. Ctrl-C gives an empty line. */
qp_status chat_input_read(chat_input *input, char **line, qp_error *error);

/* Saves the history. NULL is allowed. */
void chat_input_close(chat_input *input);

#endif
