/* The server's state, shared by its files. */
#pragma once

#include "engine/adapters.h"
#include "engine/vocabulary.h"
#include "server/api_error.h"
#include "server/batcher.h"
#include "server/form.h"
#include "server/http.h"
#include "server/keys.h"
#include "server/kv_events.h"
#include "server/response_store.h"
#include "server/server.h"
#include "server/tls.h"
#include "server/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef enum server_phase {
    SERVER_LOADING,
    SERVER_READY,
    SERVER_DRAINING,
    SERVER_FAILED, /* the model could not be opened */
} server_phase;

enum { ROUTES_MOST = 128, HTTP_STATUSES = 6 };

struct server {
    const server_options *options;
    struct event_base *base;
    http_server *http;
    tls_context *tls; /* NULL: no TLS; the I/O thread's */
    worker_pool *workers;
    api_keys keys; /* used by the I/O thread only */
    form_cache forms;
    response_store responses;
    struct {
        pthread_mutex_t lock;
        double scales[ADAPTER_MAX]; /* of requests that ask for no adapters; 0: it is not applied */
    } adapters;
    atomic_int phase;
    atomic_bool leaving;     /* /ready says no, and requests are still taken */
    atomic_bool raw_special; /* prompts have control tokens */
    time_t started;
    _Atomic uint64_t statuses[ROUTES_MOST][HTTP_STATUSES]; /* replies, by route and first digit */

    /* Set before the phase becomes SERVER_READY, constant afterwards. */
    qp_engine *engine; /* runs on the engine thread; others read only constant data */
    const qp_vocabulary *vocabulary;
    bool takes_tools; /* the chat template writes them */
    bool thinks;      /* it has marks of thoughts */
    model_pooling pooling;
    qp_engine_info info;
    qp_sampling defaults;
    batcher *_Atomic batcher;
    kv_events *published; /* NULL: the cache's changes are not published */

    pthread_t loader;
    qp_error load_error;
    int loaded; /* an event: the loader has ended */
};

/* The model's vocabulary, or an error if it has none. */
qp_status server_vocabulary(const server *s, api_error *error);

/* Sends an error as the reply. */
void server_reply_error(exchange *x, const api_error *error, api_style style);

/* Sends what json_put() makes of the format as the reply; a text, if no memory was missing for it.
 */
void server_reply_json(exchange *x, const char *format, ...);
void server_reply_text(exchange *x, const char *type, const strbuf *text);
