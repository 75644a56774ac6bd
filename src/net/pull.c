/* qp_pull(): see quipu_net.h. */
#include "quipu_net.h"

#include "base/progress.h"
#include "base/sized.h"
#include "hub/resolve.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The hub's settings and its buffer of hashes are static. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void show(void *context, const progress *progress)
{
    const qp_pull_options *o = context;
    strbuf line = {0};
    progress_print(progress, &line);
    o->progress(o->progress_context, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

static qp_status fetch(void *context, hub *hub, const hub_reference *reference,
                       char path[HUB_PATH_SIZE], qp_error *error)
{
    const qp_pull_options *o = context;
    progress progress = {.sink = o->progress ? show : NULL, .context = context};
    hub->progress = &progress;
    hub->cancel = o->cancel;
    return hub_pull(hub, reference, path, error);
}

qp_status qp_pull(const qp_pull_options *options, char **path, qp_error *error)
{
    qp_pull_options o;
    char found[HUB_PATH_SIZE];
    qp_error own; /* hub_resolve() reads what went wrong */
    *path = NULL;
    TRY(SIZED_READ(qp_pull_options, options, &o, error));
    if (!o.model) return error_set(error, QP_INVALID, "qp_pull: no model was named");
    pthread_mutex_lock(&one_at_a_time);
    qp_status status = hub_resolve(o.model, false, fetch, &o, found, &own);
    pthread_mutex_unlock(&one_at_a_time);
    if (status != QP_OK) {
        if (error) *error = own;
        return status;
    }
    *path = strdup(found);
    return *path ? QP_OK : error_no_memory(error, "the path", strlen(found));
}
