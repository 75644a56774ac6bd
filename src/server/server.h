/* quipu serve: HTTP on one side, the batcher on the other. See DESIGN in doc/ARCHITECTURE.md.
 *
 *     I/O thread: sockets, keys, routes -> workers: JSON, templates, tokens, text -> engine thread
 *
 * The I/O thread is the caller's: server_run() returns when the server has ended. The model is
 * opened on a thread of its own, so that /health answers (503) from the first moment on.
 */
#ifndef QUIPU_SERVER_SERVER_H
#define QUIPU_SERVER_SERVER_H

#include "base/status.h"

#include <stdint.h>

typedef struct server_options {
    const char *host;
    int port;
    const char *alias;          /* the model's name in replies */
    const char *api_key_file;   /* keys, one a line; NULL: no key is needed */
    const char *api_key;        /* one more key, or NULL */
    const char *const *origins; /* [n_origins] pages of other hosts that may call; "*": all */
    size_t n_origins;
    bool insecure;     /* other hosts may connect without a key */
    bool shared_cache; /* clients with different keys share prefixes */
    int workers;       /* threads that parse and format */
    size_t parallel;   /* answers that are made at a time */
    size_t max_body, max_connections, max_queued;
    double drain_seconds; /* that answers have to end after SIGTERM */
    double timeout;       /* seconds that an answer may take; 0: any */
    /* Opens the engine; on a thread of its own. */
    qp_status (*open)(void *context, qp_engine **out, qp_sampling *sampling, qp_error *error);
    void *context;
    /* One line for a person: where it listens, that it is ready, that it ends. */
    void (*log)(void *context, qp_log_level level, const char *message);
} server_options;

typedef struct server server;

/* Serves until SIGTERM or SIGINT. QP_INVALID refuses a host that others reach without a key. */
qp_status server_run(const server_options *options, qp_error *error);

#endif
