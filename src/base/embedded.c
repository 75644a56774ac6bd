/* The embedded texts: see embedded.h. */
#include "base/embedded.h"

#include <string.h>

const embedded_text *embedded_find(const char *path)
{
    for (const embedded_text *t = embedded_texts; t->path; t++) {
        if (strcmp(t->path, path) == 0) return t;
    }
    return NULL;
}
