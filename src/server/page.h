/* The page of the server: conversations, and the engine beside them. Its files are in the program,
 * and libraries of Debian's packages (page/libraries.txt). */
#pragma once

#include "server/server_state.h"

/* GET / and the files that it names. */
void reply_page(server *s, exchange *x);

/* GET of `prefix` without a slash at its end: the files are named relative to the page, so its
 * address must have one. */
void reply_page_slash(const char *prefix, exchange *x);
