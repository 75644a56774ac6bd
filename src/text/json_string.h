/* Text as a JSON string. */
#pragma once

#include "base/strbuf.h"

/* Appends the string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void json_put_string(strbuf *out, const char *text, size_t length);
