/* From a complete request to the route that answers it, after its origin and its key were checked.
 */
#pragma once

#include "server/http.h"

/* `server`: a server. On the I/O thread, with a reference of the exchange that is taken over. */
void server_dispatch(void *server, exchange *x);
