/* quipu serve: HTTP on one side, the batcher on the other. See doc/SERVER.md.
 *
 *     I/O thread: sockets, keys, routes -> workers: JSON, templates, tokens, text -> engine thread
 *
 * The I/O thread is the caller's: server_run() returns when the server has ended. The model is
 * opened on a thread of its own, so /health answers 503 while it loads.
 */
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "quipu.h"

#include <stdint.h>

typedef enum server_pooling {
    SERVER_POOLING_MODEL, /* as the model's files say, else the mean */
    SERVER_POOLING_MEAN,  /* the mean of the last hidden states */
    SERVER_POOLING_LAST,  /* the last token's state */
} server_pooling;

typedef enum server_switch { SERVER_AUTO, SERVER_ON, SERVER_OFF } server_switch;

struct event_base;
struct exchange;

/* What answers in place of a model: processes with models, for `quipu serve --models`. All on the
 * I/O thread. */
typedef struct server_proxy {
    qp_status (*open)(void *context, struct event_base *base, qp_error *error);
    /* Takes a request over with its reference, after its key and origin were checked; false: it is
     * about the server itself. */
    bool (*take)(void *context, struct exchange *x);
    void (*read_again)(void *context); /* SIGHUP: the keys have changed */
    void (*close)(void *context);      /* all clients have left */
    void *context;
} server_proxy;

typedef struct server_options {
    const char *const *hosts; /* [n_hosts]: names, addresses or unix sockets: see listen.h */
    size_t n_hosts;
    int port;
    const char *tls_certificate, *tls_key; /* files in PEM; NULL: no TLS */
    const char *prefix;                    /* of all paths, such as "/llm"; NULL: none */
    bool access_log, log_json;             /* a line for each request; all lines are JSON */
    bool own_metrics;                      /* /metrics without the names of vLLM and llama.cpp */
    size_t max_tokens; /* of an answer, unless its request says; 0: until the context is full */
    const char *alias; /* the model's name in replies */
    const char *const *adapter_names; /* of the engine's adapters; NULL: those of their files */
    const char *api_key_file;         /* keys, one a line; NULL: no key is needed */
    const char *api_key;              /* one more key, or NULL */
    const char *const *origins;       /* [n_origins] origins of pages that may call; "*": all;
                                       * "localhost": those of this computer */
    size_t n_origins;
    bool insecure;          /* other computers may connect without a key */
    bool shared_cache;      /* clients with different keys share prefixes */
    bool cut_embeddings;    /* the model was trained for shorter vectors */
    server_pooling pooling; /* how texts become vectors */
    /* Whether prompts without a chat template have control tokens; SERVER_AUTO: on loopback without
     * keys. */
    server_switch raw_special;
    const char *chat_template;       /* in place of the model's own; NULL: none */
    const cJSON *template_variables; /* an object: of chat templates, unless a request has others;
                                      * NULL: none */
    const char *prompt_cache;   /* folder of cached prompts that outlive the server; NULL: none */
    uint64_t prompt_cache_size; /* most bytes of its file */
    int workers;                /* threads that parse and format */
    size_t parallel;            /* answers generated at a time */
    size_t max_body, max_connections, client_connections, max_queued;
    size_t store_size;   /* bytes of kept responses; 0: none is kept */
    double ping_seconds; /* of silence in a stream, after which a comment is sent; 0: none */
    /* Where changes of the prefix cache are published, and sent again: addresses of ZMQ. NULL: not.
     * Who connects learns the tokens of all prompts. */
    const char *kv_events, *kv_events_replay, *kv_events_topic;
    double drain_delay;   /* time after SIGTERM in which /ready says no, before that time begins */
    double drain_seconds; /* time for answers to end after SIGTERM */
    double timeout;       /* seconds that an answer may take; 0: any */
    const server_proxy *proxy; /* NULL: there is one model, which `open` opens */
    /* Opens the engine. Called on a thread of its own. */
    qp_status (*open)(void *context, qp_engine **out, qp_sampling *sampling, qp_error *error);
    void *context;
    /* Inside a program: an eventfd that ends the server like SIGTERM when it is written to, while
     * signals are left to the program. 0: signals. */
    int stop;
    /* May be NULL. Called when the model is loaded, with the port that the server listens on. */
    void (*ready)(void *context, int port);
    /* May be NULL. Called with true before the engine's pass under way is waited for, which never
     * ends where a driver hangs, and with false after it. */
    void (*limit_ending)(bool limit);
    /* Receives one line of text: the address, that the server is ready, that it ends. */
    void (*log)(void *context, qp_log_level level, const char *message);
    /* Receives whole lines: of the access log, and with log_json in place of `log`. */
    void (*log_line)(void *context, const char *line);
} server_options;

typedef struct server server;

/* Serves until SIGTERM or SIGINT, or until `stop`. QP_INVALID: other computers could connect
 * without a key. */
qp_status server_run(const server_options *options, qp_error *error);
