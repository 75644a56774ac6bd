/* The processes of models and the memory that they share. On the I/O thread.
 *
 *     STOPPED -> COUNTING -> WAITING -> LOADING -> READY -> ENDING -> STOPPED
 *                (its needs)  (for room)
 */
#pragma once

#include "router/catalog.h"
#include "router/router.h"

#include <event2/event.h>
#include <sys/types.h>

typedef enum model_state {
    MODEL_STOPPED,
    MODEL_COUNTING,
    MODEL_WAITING,
    MODEL_LOADING,
    MODEL_READY,
    MODEL_ENDING,
} model_state;

struct model;

/* A request that waits for a model or is answered by it; the first member of what waits. */
typedef struct waiting {
    struct waiting *next;
    /* The model is ready; NULL: it is not, and `why` says so. */
    void (*go)(struct waiting *w, struct model *m, const char *why);
} waiting;

typedef struct model {
    struct models *all;
    char *name;
    model_state state;
    pid_t process;
    int link,
        end; /* the socket, and the pipe that ends the process when it is closed; -1: closed */
    struct event *readable;
    char socket[96];
    char line[1024]; /* of the link, not yet whole */
    size_t in_line;
    char why[512]; /* it failed; "": it did not */
    uint64_t needs;
    uint64_t since; /* when it came into this state, clock_ns() */
    uint64_t stamp; /* of the entry that it was started for: catalog_stamp() */
    uint64_t used;  /* when it answered last */
    uint64_t keep;  /* nanoseconds that it stays after an answer; UINT64_MAX: until its memory is
                     * needed */
    size_t active;  /* requests that it answers */
    int deaths;     /* of its processes since one answered */
    bool leaving;   /* it takes no more requests, and ends after those */
    waiting *first, **last;
} model;

typedef struct models {
    const router_options *options;
    struct event_base *base;
    char folder[64]; /* of sockets */
    catalog known;
    uint64_t keep; /* of models whose requests say nothing: see model.keep */
    model **items; /* [count]: those that were ever asked for */
    size_t count;
    struct event *ended, *tick;
} models;

qp_status models_open(models *m, const router_options *options, struct event_base *base,
                      qp_error *error);
/* Ends all processes. */
void models_close(models *m);

/* Calls w->go() once the model is ready or has failed, perhaps at once. QP_IO: no such model, or no
 * memory for it. */
qp_status models_ask(models *m, const char *name, waiting *w, qp_error *error);

/* The client of a waiting request has left. */
void models_forget(models *m, waiting *w);

/* A request that `go` was called for has been answered. */
void models_answered(model *m);

/* Ends the model, if it runs or is being loaded, as soon as its answers have ended. */
void models_end(models *m, const char *name);

/* Reads the list again; models whose files have changed or are gone end after their answers. On
 * failure the list stays. */
qp_status models_list(models *m, qp_error *error);

/* From now on the model stays for so many nanoseconds after an answer; UINT64_MAX: until its memory
 * is needed. */
void models_keep(models *m, const char *name, uint64_t keep);

/* Whether it runs, or is being loaded. */
bool models_runs(const models *m, const char *name);

/* Of those that are ready the one that was used last; NULL: there is none. */
model *models_last(models *m);

/* All models that run are started again with the next request. */
void models_renew(models *m);

/* Bytes of all that run. */
uint64_t models_memory(const models *m);

const char *model_state_name(const model *m);
