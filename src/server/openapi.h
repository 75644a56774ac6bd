/* The server's description of itself, from the tables of routes and fields. */
#pragma once

#include "server/server_state.h"

/* GET /openapi.json: OpenAPI 3.1. */
void reply_openapi(server *s, exchange *x);
