/* See names.h. */
#include "base/names.h"

#include <string.h>

bool name_ends_with(const char *name, const char *ending)
{
    const size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

bool names_next(const char **list, char name[NAME_SIZE])
{
    if (!*list) return false;
    const char *from = *list + strspn(*list, " \t");
    size_t length = strcspn(from, ",");
    *list = from[length] ? from + length + 1 : NULL;
    while (length > 0 && (from[length - 1] == ' ' || from[length - 1] == '\t'))
        length--;
    if (length > NAME_SIZE - 1) length = NAME_SIZE - 1;
    memcpy(name, from, length);
    name[length] = '\0';
    return true;
}
