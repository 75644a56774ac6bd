/* Who uses an engine: one call at a time, whichever thread makes it.
 *
 * The mutex is taken by every call that runs or changes the engine, and is tried, not waited for:
 * a call that finds it taken by another thread is refused with QP_BUSY. Functions without a status
 * wait. The thread that has it may take it again in a callback. To take and to give it back are an
 * atomic operation each, so a pass does not notice.
 *
 * What belongs to an engine (sessions, samplers, traces) holds a reference to it, so these may be
 * closed after the engine, and calls with them are then refused. What a callback closes is closed
 * when the call ends, because the call may still use it.
 */
#pragma once

#include "base/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct qp_engine;

/* The first member of what belongs to an engine. */
typedef struct engine_object {
    void (*free)(struct engine_object *object); /* with the engine's pages and slots that it has */
    struct engine_object *next;                 /* of those that a callback has closed */
} engine_object;

typedef struct engine_owner {
    pthread_mutex_t mutex; /* recursive */
    atomic_bool closing;   /* qp_engine_close() was called: nothing makes progress any more */
    int depth;         /* under the mutex, as what follows: 1 in a call, more in its callbacks */
    bool close_wanted; /* a callback has closed the engine */
    bool closed;       /* its memory is gone, but for this struct */
    size_t references; /* the open engine's own, and one for each object */
    engine_object *dropped; /* that callbacks have closed */
} engine_owner;

qp_status engine_owner_init(engine_owner *owner, qp_error *error);

/* For a call that runs passes or changes what they read; callbacks may not make it. QP_BUSY:
 * another call is under way; QP_CANCELLED: the engine is being closed; QP_INVALID: it is closed, or
 * NULL. */
qp_status engine_enter(struct qp_engine *engine, qp_error *error);

/* For a call that callbacks may make too. */
qp_status engine_enter_within(struct qp_engine *engine, qp_error *error);

/* For a function that cannot fail: waits for the call of another thread. */
void engine_wait(struct qp_engine *engine);

/* Ends the call. The last reference frees the engine. */
void engine_leave(struct qp_engine *engine);

/* For qp_engine_close(): ends what is under way and waits for it. false: a callback closes the
 * engine, which is left to the end of its call. True: engine_leave() must follow. */
bool engine_begin_close(struct qp_engine *engine);

/* Adds a new object; the engine is entered. */
void engine_add_object(struct qp_engine *engine, engine_object *object,
                       void (*free)(engine_object *object));

/* Frees it now, or when the call ends in whose callback this is. */
void engine_close_object(struct qp_engine *engine, engine_object *object);

/* Whether passes should end because qp_engine_close() waits. */
bool engine_is_closing(const struct qp_engine *engine);
