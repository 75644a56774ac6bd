/* Text as a JSON string. */
#ifndef QUIPU_TEXT_JSON_STRING_H
#define QUIPU_TEXT_JSON_STRING_H

#include "base/strbuf.h"

/* Appends the string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void json_put_string(strbuf *out, const char *text, size_t length);

#endif
