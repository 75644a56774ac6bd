/* What a server says of itself before a run: GET /v1/models. */
#ifndef QUIPU_LOAD_SERVER_FACTS_H
#define QUIPU_LOAD_SERVER_FACTS_H

#include "load/url.h"

#include <stddef.h>
#include <stdint.h>

typedef struct server_facts {
    struct sockaddr_storage address; /* that takes connections */
    socklen_t address_length;
    char model[256];    /* the first that is listed; empty: none is */
    int64_t vocab_size; /* of that model, where the server says it as llama.cpp does; else 0 */
} server_facts;

/* QP_IO: nobody answers there. A server that lists no models is no error: then the model is empty
 * and *why says what it answered. */
qp_status server_facts_get(const load_url *url, const char *api_key, double timeout,
                           server_facts *out, qp_error *why, qp_error *error);

#endif
