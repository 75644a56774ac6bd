/* Where the program keeps what it fetched: see option_cache.h. */
#include "base/option_cache.h"

#include <stdio.h>
#include <stdlib.h>

bool option_cache_path(const char *name, char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (cache && *cache)
        length = snprintf(path, size, "%s/quipu/%s", cache, name);
    else if (home && *home)
        length = snprintf(path, size, "%s/.cache/quipu/%s", home, name);
    else
        return false;
    return length >= 0 && (size_t)length < size;
}

bool option_expand_home(const char *typed, char *path, size_t size)
{
    const char *home = getenv("HOME");
    bool stands_for_home = typed[0] == '~' && (typed[1] == '/' || !typed[1]) && home && *home;
    int length = stands_for_home ? snprintf(path, size, "%s%s", home, typed + 1)
                                 : snprintf(path, size, "%s", typed);
    return length >= 0 && (size_t)length < size;
}
