/* One owner at a time: see owner.h. */
#define _XOPEN_SOURCE 700 /* recursive mutexes */
#include "engine/owner.h"

#include "engine/engine.h"

#include <stdlib.h>

qp_status engine_owner_init(engine_owner *o, qp_error *error)
{
    pthread_mutexattr_t recursive;
    *o = (engine_owner){.references = 1};
    bool made = pthread_mutexattr_init(&recursive) == 0;
    made = made && pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE) == 0 &&
           pthread_mutex_init(&o->mutex, &recursive) == 0;
    return made ? QP_OK : error_no_memory(error, "the engine's lock", sizeof o->mutex);
}

bool engine_is_closing(const qp_engine *e)
{
    return atomic_load_explicit(&e->owner.closing, memory_order_relaxed);
}

static qp_status being_closed(qp_error *error)
{
    return error_set(error, QP_CANCELLED, "the engine is being closed");
}

qp_status engine_enter_within(qp_engine *e, qp_error *error)
{
    if (!e) return error_set(error, QP_INVALID, "an engine is needed, found NULL");
    if (pthread_mutex_trylock(&e->owner.mutex) != 0) {
        if (engine_is_closing(e)) return being_closed(error);
        return error_set(error, QP_BUSY,
                         "another thread uses the engine: one call at a time may run; make this "
                         "one when that has returned, or make all calls from one thread");
    }
    e->owner.depth++;
    qp_status status = QP_OK;
    if (e->owner.closed)
        status = error_set(error, QP_INVALID, "the engine has been closed");
    else if (engine_is_closing(e))
        status = being_closed(error);
    if (status != QP_OK) engine_leave(e);
    return status;
}

qp_status engine_enter(qp_engine *e, qp_error *error)
{
    TRY(engine_enter_within(e, error));
    if (e->owner.depth == 1) return QP_OK;
    engine_leave(e);
    return error_set(error, QP_BUSY,
                     "a callback made this call while the engine is in the middle of another one: "
                     "make it when that has returned");
}

void engine_wait(qp_engine *e)
{
    pthread_mutex_lock(&e->owner.mutex);
    e->owner.depth++;
}

bool engine_begin_close(qp_engine *e)
{
    atomic_store(&e->owner.closing, true);
    engine_wait(e);
    if (e->owner.depth == 1) return true;
    e->owner.close_wanted = true;
    engine_leave(e);
    return false;
}

void engine_leave(qp_engine *e)
{
    engine_owner *o = &e->owner;
    if (o->depth == 1 && o->close_wanted) {
        o->close_wanted = false;
        engine_shut(e);
    }
    while (o->depth == 1 && o->dropped) {
        engine_object *object = o->dropped;
        o->dropped = object->next;
        object->free(object);
        o->references--;
    }
    o->depth--;
    const bool last = o->references == 0;
    pthread_mutex_unlock(&o->mutex);
    if (!last) return;
    pthread_mutex_destroy(&o->mutex);
    free(e);
}

void engine_add_object(qp_engine *e, engine_object *object, void (*free)(engine_object *object))
{
    *object = (engine_object){.free = free};
    e->owner.references++;
}

void engine_close_object(qp_engine *e, engine_object *object)
{
    engine_wait(e);
    object->next = e->owner.dropped;
    e->owner.dropped = object;
    engine_leave(e);
}
