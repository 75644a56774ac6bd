/* Where the program keeps what it fetched: decided by the environment, so it is read here. */
#ifndef QUIPU_BASE_OPTION_CACHE_H
#define QUIPU_BASE_OPTION_CACHE_H

#include <stdbool.h>
#include <stddef.h>

/* "${XDG_CACHE_HOME:-$HOME/.cache}/quipu/NAME"; false when neither variable is set or the path
 * does not fit. */
bool option_cache_path(const char *name, char *path, size_t size);

/* A path that a person typed where no shell reads it: a leading ~ or ~/ stands for $HOME, anything
 * else for itself. False where it does not fit. */
bool option_expand_home(const char *typed, char *path, size_t size);

#endif
