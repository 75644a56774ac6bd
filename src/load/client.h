/* Runs concurrent requests on one event loop. */
#pragma once

#include "load/server_facts.h"
#include "load/workload.h"

typedef struct client client;

/* Also builds the part of a request that all requests share. Call client_close() afterwards. */
qp_status client_open(const workload *w, const load_url *url, const server_facts *server,
                      load_result *result, client **out, qp_error *error);
void client_close(client *c);

/* Runs the requests of the warm-up, which add nothing to the result, or the measured ones. */
qp_status client_run(client *c, bool warmup, qp_error *error);
