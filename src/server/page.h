/* The page of the server: a conversation, and the engine beside it. Its files are in the program.
 */
#ifndef QUIPU_SERVER_PAGE_H
#define QUIPU_SERVER_PAGE_H

#include "server/server_state.h"

/* GET / and the files that it names. */
void reply_page(server *s, exchange *x);

#endif
