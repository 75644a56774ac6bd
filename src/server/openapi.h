/* The server's description of itself, from the tables of routes and fields. */
#ifndef QUIPU_SERVER_OPENAPI_H
#define QUIPU_SERVER_OPENAPI_H

#include "server/server_state.h"

/* GET /openapi.json: OpenAPI 3.1. */
void reply_openapi(server *s, exchange *x);

#endif
