/* The timeline of a pass, on demand: see batcher.h.
 *
 *     worker: wanted -> engine thread: opens the trace, runs a pass -> recorded
 *     -> worker: prints it -> printed -> engine thread: closes the trace -> none
 *
 * The engine thread alone opens and closes the trace. A trace has room for one pass, so nothing
 * writes to it while the worker prints.
 */
#include "server/batcher_state.h"

#include "base/clock.h"
#include "base/status.h"

/* Unless the worker has given up meanwhile. */
static void advance(batcher *b, trace_state from, trace_state to)
{
    pthread_mutex_lock(&b->mutex);
    if (atomic_load(&b->trace_state) == (int)from) atomic_store(&b->trace_state, to);
    pthread_cond_broadcast(&b->answered);
    pthread_mutex_unlock(&b->mutex);
}

void trace_before_step(batcher *b)
{
    const qp_trace_options options = {.size = sizeof options, .max_passes = 1};
    switch ((trace_state)atomic_load(&b->trace_state)) {
    case TRACE_WANTED: {
        const bool open = qp_trace_open(b->engine, &options, &b->trace, &b->trace_error) == QP_OK;
        advance(b, TRACE_WANTED, open ? TRACE_RECORDING : TRACE_FAILED);
        break;
    }
    case TRACE_PRINTED:
        qp_trace_close(b->trace);
        b->trace = NULL;
        advance(b, TRACE_PRINTED, TRACE_NONE);
        break;
    default:
        break;
    }
}

void trace_after_step(batcher *b)
{
    if (atomic_load(&b->trace_state) == TRACE_RECORDING && b->trace->n_passes > 0)
        advance(b, TRACE_RECORDING, TRACE_RECORDED);
}

/* Whether the state became one of the two, until the time is over. Under the mutex. */
static bool wait_for(batcher *b, trace_state one, trace_state other, const struct timespec *end)
{
    for (;;) {
        const trace_state state = (trace_state)atomic_load(&b->trace_state);
        if (state == one || state == other) return true;
        if (b->ended || pthread_cond_timedwait(&b->answered, &b->mutex, end) != 0) return false;
    }
}

/* Under the mutex. */
static void signal_engine(batcher *b, trace_state state)
{
    atomic_store(&b->trace_state, state);
    b->signalled = true;
    pthread_cond_signal(&b->work);
}

/* Takes the trace and waits until it is recorded; *mine: the caller must give it back. */
static qp_status record(batcher *b, bool *mine, qp_error *error)
{
    const uint64_t until = clock_ns() + 1000000000;
    const struct timespec end = {.tv_sec = (time_t)(until / 1000000000),
                                 .tv_nsec = (long)(until % 1000000000)};
    *mine = wait_for(b, TRACE_NONE, TRACE_NONE, &end);
    if (!*mine)
        return error_set(error, QP_NO_MEMORY, "other timelines are being recorded; try again");
    signal_engine(b, TRACE_WANTED);
    if (!wait_for(b, TRACE_RECORDED, TRACE_FAILED, &end))
        return error_set(error, QP_CANCELLED,
                         "no pass has ended within a second: ask while an answer is made");
    if (atomic_load(&b->trace_state) == TRACE_RECORDED) return QP_OK;
    *error = b->trace_error;
    return error->status;
}

qp_status batcher_trace(batcher *b, qp_trace_form form, char **text, size_t *length,
                        qp_error *error)
{
    bool mine;
    pthread_mutex_lock(&b->mutex);
    qp_status status = record(b, &mine, error);
    pthread_mutex_unlock(&b->mutex);
    if (status == QP_OK) status = qp_trace_print(b->trace, form, text, length, error);
    pthread_mutex_lock(&b->mutex);
    if (mine) signal_engine(b, TRACE_PRINTED);
    pthread_mutex_unlock(&b->mutex);
    return status;
}
