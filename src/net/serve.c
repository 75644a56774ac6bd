/* The server inside a program: see quipu_net.h. A thread runs server_run(). */
#include "quipu_net.h"

#include "base/files.h"
#include "base/platform.h"
#include "base/sized.h"
#include "base/names.h"
#include "server/server.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DEFAULT_PARALLEL = 8,
    LEAST_OUTPUTS = 128, /* rows of logits: for prompts whose tokens are all scored */
    MAX_BODY = 16 << 20,
    STORE_SIZE = 64 << 20,
    MAX_CONNECTIONS = 1024,
    MAX_QUEUED = 1024,
    WORKERS = 2,
};

struct qp_server {
    qp_server_options given;
    qp_engine_options engine;
    server_options options;
    char name[256];
    const char *host;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ready, ended; /* under the mutex */
    int port;
    qp_status status; /* of server_run() */
    qp_error error;
};

static qp_status open_model(void *context, qp_engine **engine, qp_sampling *sampling,
                            qp_error *error)
{
    const qp_server *s = context;
    TRY(qp_engine_open(&s->engine, engine, error));
    sampling->size = sizeof *sampling;
    qp_status status = qp_sampling_defaults(*engine, sampling, error);
    if (status == QP_OK) return QP_OK;
    qp_engine_close(*engine);
    *engine = NULL;
    return status;
}

static void on_ready(void *context, int port)
{
    qp_server *s = context;
    pthread_mutex_lock(&s->mutex);
    s->ready = true;
    s->port = port;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

static void on_log(void *context, qp_log_level level, const char *message)
{
    const qp_server *s = context;
    if (s->given.log) s->given.log(s->given.log_context, level, message);
}

static void *run(void *context)
{
    qp_server *s = context;
    const qp_status status = server_run(&s->options, &s->error);
    pthread_mutex_lock(&s->mutex);
    s->status = status;
    s->ended = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* The name of the model's file, without its folder and ending. */
static void name_model(qp_server *s)
{
    snprintf(s->name, sizeof s->name, "%s", files_last(s->engine.model ? s->engine.model : ""));
    if (name_ends_with(s->name, ".gguf")) s->name[strlen(s->name) - strlen(".gguf")] = '\0';
}

static void set_options(qp_server *s)
{
    const qp_server_options *o = &s->given;
    if (s->engine.max_sessions == 0) s->engine.max_sessions = DEFAULT_PARALLEL;
    if (s->engine.max_outputs == 0)
        s->engine.max_outputs =
            s->engine.max_sessions < LEAST_OUTPUTS ? LEAST_OUTPUTS : s->engine.max_sessions;
    name_model(s);
    s->host = o->host ? o->host : "127.0.0.1";
    s->options.hosts = &s->host;
    s->options.n_hosts = 1;
    s->options.port = (int)o->port;
    s->options.alias = o->name ? o->name : s->name;
    s->options.api_key = o->api_key;
    s->options.origins = &s->given.origins;
    s->options.n_origins = o->origins != NULL;
    s->options.insecure = o->insecure != 0;
    s->options.workers = WORKERS;
    s->options.parallel = (size_t)s->engine.max_sessions;
    s->options.max_body = MAX_BODY;
    s->options.store_size = STORE_SIZE;
    s->options.max_connections = MAX_CONNECTIONS;
    s->options.max_queued = MAX_QUEUED;
    s->options.drain_seconds = o->drain_seconds;
    s->options.open = open_model;
    s->options.ready = on_ready;
    s->options.log = on_log;
    s->options.context = s;
}

static qp_status check(const qp_server_options *o, qp_error *error)
{
    if (!o->engine) return error_set(error, QP_INVALID, "qp_server_open: no engine was described");
    if (o->port < 0 || o->port > 65535)
        return error_set(error, QP_INVALID,
                         "the port of a server is 0 to 65535 (0: one that is free), found %lld",
                         (long long)o->port);
    if (o->drain_seconds >= 0 && o->drain_seconds <= 86400) return QP_OK;
    return error_set(error, QP_INVALID, "drain_seconds is 0 to 86400, found %g", o->drain_seconds);
}

static void free_server(qp_server *s)
{
    if (s->options.stop > 0) close(s->options.stop);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* Starts the thread and waits until it serves, or has ended. */
static qp_status start(qp_server *s, qp_error *error)
{
    s->options.stop = platform_event_open(false);
    if (s->options.stop <= 0 || pthread_create(&s->thread, NULL, run, s) != 0)
        return error_set(error, QP_IO, "the system refused to start a thread for the server");
    pthread_mutex_lock(&s->mutex);
    while (!s->ready && !s->ended)
        pthread_cond_wait(&s->changed, &s->mutex);
    const bool ready = s->ready;
    pthread_mutex_unlock(&s->mutex);
    if (ready) return QP_OK;
    pthread_join(s->thread, NULL);
    if (s->status == QP_OK) return error_set(error, QP_CANCELLED, "the server ended at once");
    if (error) *error = s->error;
    return s->status;
}

qp_status qp_server_open(const qp_server_options *options, qp_server **out, qp_error *error)
{
    *out = NULL;
    qp_server *s = calloc(1, sizeof *s);
    if (!s) return error_no_memory(error, "the server", sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    qp_status status = SIZED_READ(qp_server_options, options, &s->given, error);
    if (status == QP_OK) status = check(&s->given, error);
    if (status == QP_OK) status = SIZED_READ(qp_engine_options, s->given.engine, &s->engine, error);
    if (status == QP_OK) {
        s->engine.size = sizeof s->engine;
        set_options(s);
        status = start(s, error);
    }
    if (status == QP_OK)
        *out = s;
    else
        free_server(s);
    return status;
}

int qp_server_port(const qp_server *server)
{
    return server->port;
}

void qp_server_close(qp_server *server)
{
    if (!server) return;
    platform_event_signal(server->options.stop);
    pthread_join(server->thread, NULL);
    free_server(server);
}
