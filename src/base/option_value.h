/* Converts the value of one option from text. Private to the parts of option.h. */
#pragma once

#include "base/option.h"

/* Parses `text` into `field`, which has the option's type and is untouched on failure. `where` is
 * the flag or variable that the message names. An OPTION_STRINGS list grows in `memory`; the other
 * types do not use it. */
qp_status option_store(const option_spec *option, const char *where, const char *text, void *field,
                       arena *memory, qp_error *error);
