/* Which pages of browsers may call the server.
 *
 * A browser says which page a request comes from ("Origin"). Any page can make it send requests to
 * this host, so requests of pages from elsewhere are refused unless their origin was named; and
 * without keys also those of a page whose own name was made to lead here (DNS rebinding).
 */
#ifndef QUIPU_SERVER_ORIGIN_H
#define QUIPU_SERVER_ORIGIN_H

#include "server/api_error.h"
#include "server/http.h"
#include "server/server.h"

/* Refuses the request, or adds the headers that let its page read the reply. */
qp_status origin_check(const server_options *options, bool has_keys, exchange *x, api_error *error);

#endif
