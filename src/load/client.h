/* Requests side by side over one event loop. */
#ifndef QUIPU_LOAD_CLIENT_H
#define QUIPU_LOAD_CLIENT_H

#include "load/server_facts.h"
#include "load/workload.h"

typedef struct client client;

/* What every request begins with is made here. client_close() it. */
qp_status client_open(const workload *w, const load_url *url, const server_facts *server,
                      load_result *result, client **out, qp_error *error);
void client_close(client *c);

/* Runs the warm-up's requests, which leave nothing in the result, or those that count. */
qp_status client_run(client *c, bool warmup, qp_error *error);

#endif
