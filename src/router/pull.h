/* /api/pull and /api/delete: models of the hub in the folder of models. */
#pragma once

#include "base/status.h"
#include "server/http.h"

#include <pthread.h>
#include <stdatomic.h>

/* Zero-initialise. */
typedef struct pulls {
    const char *folder; /* borrowed */
    atomic_int running;
    volatile int cancel; /* all */
} pulls;

/* Fetches the model on a thread of its own and tells how far it is, one object a line, or with
 * `streams` off once at the end. Takes the request over. */
void pull_begin(pulls *all, const char *name, bool streams, exchange *x);

/* Waits for the threads, which end soon. */
void pulls_close(pulls *all);

/* Removes a model that was pulled. */
qp_status pull_remove(const pulls *all, const char *name, qp_error *error);
