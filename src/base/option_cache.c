/* Cache and state folders and the terminal, from the environment: see option_cache.h. */
#include "base/option_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "$VARIABLE/quipu/NAME", or "$HOME/BELOW/quipu/NAME" where the variable is not set. */
static bool user_path(const char *variable, const char *below, const char *name, char *path,
                      size_t size)
{
    const char *base = getenv(variable), *home = getenv("HOME");
    int length;
    if (base && *base)
        length = snprintf(path, size, "%s/quipu/%s", base, name);
    else if (home && *home)
        length = snprintf(path, size, "%s/%s/quipu/%s", home, below, name);
    else
        return false;
    return length >= 0 && (size_t)length < size;
}

bool option_cache_path(const char *name, char *path, size_t size)
{
    return user_path("XDG_CACHE_HOME", ".cache", name, path, size);
}

bool option_state_path(const char *name, char *path, size_t size)
{
    return user_path("XDG_STATE_HOME", ".local/state", name, path, size);
}

bool option_terminal_has_sequences(void)
{
    const char *kind = getenv("TERM");
    return kind && *kind && strcmp(kind, "dumb") != 0;
}

const char *option_editor(void)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR");
    return visual && *visual ? visual : editor && *editor ? editor : "vi";
}

bool option_has_no_colours(void)
{
    const char *given = getenv("NO_COLOR");
    return given && *given;
}

bool option_expand_home(const char *typed, char *path, size_t size)
{
    const char *home = getenv("HOME");
    bool stands_for_home = typed[0] == '~' && (typed[1] == '/' || !typed[1]) && home && *home;
    int length = stands_for_home ? snprintf(path, size, "%s%s", home, typed + 1)
                                 : snprintf(path, size, "%s", typed);
    return length >= 0 && (size_t)length < size;
}
