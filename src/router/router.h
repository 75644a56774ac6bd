/* quipu serve --models: one process for each model that is asked for, and a proxy before them.
 *
 *     client <-> server (sockets, keys, the page) <-> router <-> quipu serve -m MODEL, one each
 *
 * A process counts the memory that its model will take and asks the router before it takes any
 * (link.h). Where that does not fit beside the others, the router ends the one that was used
 * longest ago, after its answers under way; requests for it wait meanwhile. All on the server's I/O
 * thread.
 */
#pragma once

#include "server/server.h"

typedef struct router_options {
    const char *models;  /* a folder of models, or a file that lists them: see catalog.h */
    uint64_t memory;     /* bytes that models may take together */
    double keep_alive;   /* seconds after its last answer that a model stays; 0: until its memory is
                          * needed */
    double load_timeout; /* seconds until a model that is not ready has failed; 0: none */
    const char *const *arguments; /* [n_arguments]: of `quipu serve` for each model */
    size_t n_arguments;
    void (*log)(void *context, qp_log_level level, const char *message);
} router_options;

typedef struct router router;

/* QP_IO, QP_FORMAT: the models cannot be listed. The options' texts are borrowed. *proxy is for
 * server_options, and valid until router_free(). */
qp_status router_new(const router_options *options, const server_proxy **proxy, router **out,
                     qp_error *error);
void router_free(router *r);
