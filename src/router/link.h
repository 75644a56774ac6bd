/* What the router and the process of a model tell each other, through a socket with lines of text.
 *
 *     process: "needs BYTES"   before it takes memory for the model
 *     router:  "go"            it fits
 *     process: "ready"         it answers requests
 *     process: "failed TEXT"   it ends; TEXT says why
 *
 * A process ends when the router closes the pipe beside it, or is gone.
 */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* In a process of a model: the socket, and the pipe. */
enum { LINK_DESCRIPTOR = 3, LINK_END_DESCRIPTOR = 4 };

/* The process's side. `link`: points to the descriptor. */
qp_status link_ask(void *link, uint64_t bytes, qp_error *error);
void link_tell_ready(int link);
void link_tell_failed(int link, const char *why);
