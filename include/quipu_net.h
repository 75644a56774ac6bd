/* quipu_net: what needs a network, in a library of its own, so that libquipu needs neither libcurl
 * nor libevent: models of Hugging Face, and the server inside a program. libquipu_net has all of
 * quipu.h too; a program links with one of the two.
 *
 * Unlike quipu.h's functions, these read the environment: qp_pull() the variables of
 * huggingface_hub. A program that uses them ignores SIGPIPE.
 */
#ifndef QUIPU_NET_H
#define QUIPU_NET_H

#include "quipu.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Set `size`; any other field that is zero (or NULL) takes its default. */
typedef struct qp_pull_options {
    size_t size;       /* sizeof(qp_pull_options) */
    const char *model; /* "llama3.2:1b", "hf:OWNER/NAME", "hf:OWNER/NAME:Q4_K_M", or a path, which
                          stays as it is */
    const volatile int *cancel; /* set from a signal handler or another thread; may be NULL */
    /* Called while files are fetched, with one line of text, repeatedly until `finished`. May be
     * NULL. */
    void (*progress)(void *context, const char *text, bool finished);
    void *progress_context;
} qp_pull_options;

/* The path of a model as `quipu run -m` takes its name: a GGUF file or a directory, to qp_free().
 * What is not in the cache of huggingface_hub is fetched; an interrupted fetch is resumed by the
 * next one. QP_INVALID and QP_IO name what is near a name that does not exist; QP_CANCELLED. */
qp_status qp_pull(const qp_pull_options *options, char **path, qp_error *error);

typedef struct qp_server qp_server;

/* Set `size`; any other field that is zero (or NULL) takes its default. Texts live as long as the
 * server. */
typedef struct qp_server_options {
    size_t size;                     /* sizeof(qp_server_options) */
    const qp_engine_options *engine; /* max_sessions is how many answers are made at a time */
    const char *host;     /* default "127.0.0.1"; other computers need `api_key`, or `insecure` */
    int64_t port;         /* 0: one that is free */
    const char *name;     /* the model's name in replies; default: that of its file */
    const char *api_key;  /* that clients need; NULL: none */
    const char *origins;  /* an origin whose pages may call, "localhost" or "*"; NULL: none */
    double drain_seconds; /* that answers under way have to end when the server is closed; default
                             0: they are cut off */
    void (*log)(void *context, qp_log_level level,
                const char *message); /* from the server's threads; may be NULL */
    void *log_context;
    int64_t insecure; /* not 0: other computers may connect without a key */
} qp_server_options;

/* Serves the endpoints of `quipu serve` on threads of its own. Returns when the model is loaded and
 * the server answers. */
qp_status qp_server_open(const qp_server_options *options, qp_server **out, qp_error *error);

/* The port that it listens on. */
int qp_server_port(const qp_server *server);

/* Ends the server and returns when its threads have ended. NULL is allowed. */
void qp_server_close(qp_server *server);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
