/* Source texts embedded in the program, for commands that show or compile them where the source
 * tree is not installed. */
#pragma once

#include <stddef.h>

typedef struct embedded_text {
    const char *path; /* "src/op/rms_norm/rms_norm.c"; NULL ends the table */
    const char *text; /* NUL-terminated */
    size_t length;
} embedded_text;

extern const embedded_text embedded_texts[]; /* written by scripts/embed.cmake */

/* NULL when there is no such text. */
const embedded_text *embedded_find(const char *path);
