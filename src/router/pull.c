/* Fetches models: see pull.h. */
#include "router/pull.h"

#include "base/progress.h"
#include "base/strbuf.h"
#include "hub/resolve.h"
#include "text/json_string.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct pull {
    pulls *all;
    exchange *x;
    bool streams;
    char name[3 * HUB_NAME_SIZE];
    volatile int cancel; /* its client has left, or the server ends */
} pull;

static void put_error(const char *message, strbuf *out)
{
    strbuf_puts(out, "{\"error\":");
    json_put_string(out, message, strlen(message));
    strbuf_puts(out, "}\n");
}

static void on_progress(void *context, const progress *progress)
{
    pull *p = context;
    strbuf line = {0};
    if (p->all->cancel || exchange_is_gone(p->x)) p->cancel = 1;
    if (!p->streams) return;
    strbuf_printf(&line, "{\"status\":\"pulling\",\"total\":%llu,\"completed\":%llu}\n",
                  (unsigned long long)progress->total, (unsigned long long)progress->done);
    exchange_send(p->x, strbuf_text(&line), line.length);
    strbuf_free(&line);
}

static qp_status fetch(pull *p, qp_error *error)
{
    hub hub;
    hub_reference reference;
    char path[HUB_PATH_SIZE];
    progress progress = {.sink = on_progress, .context = p};
    TRY(hub_of_environment(&hub, error));
    TRY(hub_parse_name(p->name, &reference, error));
    hub.cache = p->all->folder;
    hub.progress = &progress;
    hub.cancel = &p->cancel;
    return hub_pull(&hub, &reference, path, error);
}

static void *run(void *context)
{
    pull *p = context;
    qp_error error = {0};
    strbuf last = {0};
    const qp_status status = fetch(p, &error);
    if (status == QP_OK)
        strbuf_puts(&last, "{\"status\":\"success\"}\n");
    else
        put_error(error.message, &last);
    if (p->streams) {
        exchange_send(p->x, strbuf_text(&last), last.length);
        exchange_end(p->x);
    } else {
        exchange_reply(p->x, status == QP_OK ? 200 : 500, "application/json", strbuf_text(&last),
                       last.length);
    }
    strbuf_free(&last);
    exchange_release(p->x);
    atomic_fetch_sub(&p->all->running, 1);
    free(p);
    return NULL;
}

/* At a time, because each has a thread and shares the network and the disk with the others. */
enum { PULLS_MOST = 4 };

void pull_begin(pulls *all, const char *name, bool streams, exchange *x)
{
    static const char many[] = "{\"error\":\"as many models are being fetched as can be at a time: "
                               "try again later\"}\n";
    if (atomic_load(&all->running) >= PULLS_MOST) {
        exchange_reply(x, 429, "application/json", many, sizeof many - 1);
        exchange_release(x);
        return;
    }
    static const char first[] = "{\"status\":\"pulling manifest\"}\n";
    pthread_t thread;
    pull *p = calloc(1, sizeof *p);
    if (p) {
        *p = (pull){.all = all, .x = x, .streams = streams};
        snprintf(p->name, sizeof p->name, "%s", name);
        atomic_fetch_add(&all->running, 1);
        if (streams) {
            exchange_begin(x, 200, "application/x-ndjson");
            exchange_send(x, first, sizeof first - 1);
        }
        if (pthread_create(&thread, NULL, run, p) == 0) {
            pthread_detach(thread);
            return;
        }
        atomic_fetch_sub(&all->running, 1);
        free(p);
    }
    static const char refusal[] = "{\"error\":\"the system refused to start a thread\"}\n";
    if (p && streams) {
        exchange_send(x, refusal, sizeof refusal - 1);
        exchange_end(x);
    } else {
        exchange_reply(x, 503, "application/json", refusal, sizeof refusal - 1);
    }
    exchange_release(x);
}

void pulls_close(pulls *all)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    all->cancel = 1;
    while (atomic_load(&all->running))
        nanosleep(&pause, NULL);
}

qp_status pull_remove(const pulls *all, const char *name, qp_error *error)
{
    const hub hub = {.cache = all->folder, .endpoint = "", .offline = true};
    hub_reference reference;
    uint64_t bytes;
    TRY(hub_parse_name(name, &reference, error));
    return hub_remove(&hub, &reference, &bytes, error);
}
