/* Who runs: see batcher.h. */
#include "server/batcher_state.h"

#include "base/clock.h"

static qp_session *take_session(batcher *b)
{
    for (size_t i = 0; i < b->n_slots; i++) {
        if (b->in_use[i]) continue;
        b->in_use[i] = true;
        return b->sessions[i];
    }
    return NULL;
}

static void leave_queue(batcher *b)
{
    pthread_mutex_lock(&b->mutex);
    b->n_queued--;
    pthread_mutex_unlock(&b->mutex);
}

static void start(batcher *b, choice *c)
{
    c->session = take_session(b);
    c->phase = CHOICE_RUNNING;
    if (!c->request->admitted) c->request->admitted = clock_ns();
    b->running.items[b->running.count++] = c;
    leave_queue(b);
}

void batcher_admit(batcher *b)
{
    while (b->waiting.count > 0 && b->running.count < b->n_slots) {
        choice *c = b->waiting.items[0];
        choice_list_remove(&b->waiting, 0);
        start(b, c);
    }
}
