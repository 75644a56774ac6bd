/* The routes of the server: one row for each method and path. */
#pragma once

#include "server/call.h"

typedef void route_reply(server *s, exchange *x);
typedef qp_status route_answer(call *c, api_error *error);

typedef struct route {
    const char *method, *path;
    const char *summary; /* for /openapi.json */
    api_style style;
    bool open;              /* without a key, and while the model is loaded */
    const dialect *dialect; /* makes text; NULL: `reply` answers */
    /* Answers at once, on the I/O thread: what takes no time. */
    route_reply *reply;
    const char *type; /* Content-Type of the reply; NULL: JSON, or the stream of the dialect */
    /* Answers on a worker, from a body with these fields, by what it appends to c->out. */
    field_tables fields;
    route_answer *answer;
} route;

/* The route of a request; NULL: there is none. *other: the path has another method. */
const route *route_find(const char *method, const char *path, const char **other);

/* How errors look at a path, of which there need not be a route. */
api_style route_style(const char *path);

/* All routes; the last has no method. */
extern const route routes[];
