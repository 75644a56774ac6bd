/* Looks flags of similar programs up: for option.c. */
#pragma once

#include "base/option.h"

/* Whether `words`, separated by blanks, has the word of `length` bytes. */
bool option_has_word(const char *words, const char *word, size_t length);

/* The row of the flag (`length` bytes with the dashes) that has a meaning for the command, else the
 * first of the command's that has the name; NULL: none. --no-NAME without a row has the answer of
 * --NAME, if that is only an answer. *option: the index of the command's option that it means, or
 * -1. */
const option_foreign *option_foreign_find(const option_foreign *table, const command_spec *command,
                                          const char *flag, size_t length, int *option);

/* Whether the row's `values` have this one; *out: [*length] bytes, what the option gets. */
bool option_foreign_value(const option_foreign *row, const char *value, const char **out,
                          size_t *length);

/* What a person who typed the flag should do. */
void option_foreign_advice(const program_spec *program, const option_foreign *row, strbuf *out);
