/* One line for each request that has ended: who asked for what, how it ended and how long it took.
 */
#pragma once

#include "base/strbuf.h"
#include "quipu.h"
#include "server/http.h"

#include <stdbool.h>

/* The line of an exchange that has ended, without a line end; `json`: an object of JSON. */
void access_log_put(const exchange *x, bool json, strbuf *out);

/* A message of the server as an object of JSON. */
void access_log_put_message(qp_log_level level, const char *message, strbuf *out);
