/* Names: their endings, and lists with commas between them, as options take them: "BF16,Q8_0". */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether `name` ends with `ending`, as "model.gguf" with ".gguf". */
bool name_ends_with(const char *name, const char *ending);

enum { NAME_SIZE = 64 };

/* Copies the next name of *list into `name`, without blanks around it, and advances *list; false at
 * the end. A longer name is cut to NAME_SIZE - 1 characters, which is no name of ours. Empty names
 * ("a,,b") are returned as they are. */
bool names_next(const char **list, char name[NAME_SIZE]);
