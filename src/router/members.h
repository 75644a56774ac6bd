/* Members of a JSON object without reading the rest, which may be megabytes of a conversation. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The text of the value of a member at the top, not NUL-terminated; of several with the same name
 * the last, as in the servers of models. False: there is none, or the text is no object so far. A
 * name in the text that is written with escapes is not found. */
bool member_find(const char *json, size_t length, const char *name, const char **value,
                 size_t *value_length);

/* The same, a string without its escapes, of less than `size` bytes with its NUL. */
bool member_text(const char *json, size_t length, const char *name, char *out, size_t size);
