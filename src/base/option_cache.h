/* The user's cache and state folders and the kind of terminal, from the environment; only the
 * option files read it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* "${XDG_CACHE_HOME:-$HOME/.cache}/quipu/NAME"; false when neither variable is set or the path
 * does not fit. */
bool option_cache_path(const char *name, char *path, size_t size);

/* "${XDG_STATE_HOME:-$HOME/.local/state}/quipu/NAME", for data that the user made and wants to
 * keep; false as above. */
bool option_state_path(const char *name, char *path, size_t size);

/* Whether $TERM names a terminal that understands escape sequences, unlike "dumb" ones. */
bool option_terminal_has_sequences(void);

/* The person's editor, a command: $VISUAL, else $EDITOR, else vi. */
const char *option_editor(void);

/* Whether the person wants no colours: $NO_COLOR. */
bool option_has_no_colours(void);

/* A path that a person typed where no shell expands it: a leading ~ or ~/ is replaced by $HOME,
 * anything else is copied. False where it does not fit. */
bool option_expand_home(const char *typed, char *path, size_t size);
