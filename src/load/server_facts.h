/* What a server reports before a run: GET /v1/models. */
#pragma once

#include "load/url.h"

#include <stddef.h>
#include <stdint.h>

typedef struct server_facts {
    struct sockaddr_storage address; /* the address that accepted a connection */
    socklen_t address_length;
    char model[256];    /* the first listed model; empty: none */
    int64_t vocab_size; /* of that model, if the server reports it as llama.cpp does; else 0 */
} server_facts;

/* QP_IO: no server answers at the address. A server that lists no model is not an error: the model
 * is then empty, and *why contains the answer. */
qp_status server_facts_get(const load_url *url, const char *api_key, double timeout,
                           const volatile int *cancel, server_facts *out, qp_error *why,
                           qp_error *error);
