/* The value of one option: from text, to text. Shared by the parts of option.h, not for others. */
#ifndef QUIPU_BASE_OPTION_VALUE_H
#define QUIPU_BASE_OPTION_VALUE_H

#include "base/option.h"

/* Puts the value of `text` into `field`, of the option's type; untouched when the text is wrong.
 * `where` is the flag or the variable in front of it, for the message. An OPTION_STRINGS list grows
 * in `memory`, which the other types do without. */
qp_status option_store(const option_spec *option, const char *where, const char *text, void *field,
                       arena *memory, qp_error *error);

/* Appends the value for a person to read. */
void option_print(const option_spec *option, const void *field, strbuf *out);

#endif
