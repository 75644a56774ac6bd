/* Which web pages may call the server.
 *
 * A browser says which page a request comes from ("Origin"). Any page can make a browser send
 * requests to this computer, so requests with another origin are refused unless --cors-origin names
 * it. A page whose host name was made to resolve to this computer (DNS rebinding) sends no origin
 * with a GET; so a server on loopback without keys answers only requests to this computer's names.
 */
#pragma once

#include "server/api_error.h"
#include "server/http.h"
#include "server/server.h"

/* Whether only this computer can connect to the server. */
bool origin_is_loopback(const server_options *options);

/* Refuses the request, or adds the headers that let its page read the reply. */
qp_status origin_check(const server_options *options, bool has_keys, exchange *x, api_error *error);
