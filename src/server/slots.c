/* Slots: what a choice has while it has one, and what it keeps when it gives it up. See batcher.h.
 */
#include "server/batcher_state.h"

#include "base/clock.h"

#include <string.h>

static qp_session *take_session(batcher *b)
{
    for (size_t i = 0; i < b->n_slots; i++) {
        if (b->in_use[i]) continue;
        b->in_use[i] = true;
        return b->sessions[i];
    }
    return NULL;
}

/* ---- slots of keys and requests ------------------------------------------------------------- */

static size_t find_key(const batcher *b, uint64_t key)
{
    size_t i = 0;
    while (i < b->n_keys && b->keys[i].key != key)
        i++;
    return i;
}

size_t slots_of_key(const batcher *b, uint64_t key)
{
    const size_t i = find_key(b, key);
    return i < b->n_keys ? b->keys[i].slots : 0;
}

static void count_slot(batcher *b, const request *r)
{
    const size_t i = find_key(b, r->cache_key);
    if (i == b->n_keys) b->keys[b->n_keys++] = (key_slots){.key = r->cache_key};
    b->keys[i].slots++;
    r->state->n_slots++;
}

static void uncount_slot(batcher *b, const request *r)
{
    const size_t i = find_key(b, r->cache_key);
    if (--b->keys[i].slots == 0) b->keys[i] = b->keys[--b->n_keys];
    r->state->n_slots--;
}

/* ---- getting a slot ------------------------------------------------------------------------- */

static void change_queued(batcher *b, int by)
{
    pthread_mutex_lock(&b->mutex);
    b->n_queued += (size_t)by;
    pthread_mutex_unlock(&b->mutex);
}

static void note_admitted(batcher *b, request *r)
{
    r->admitted = clock_ns();
    b->stats.requests++;
    b->stats.prompt_tokens += r->n_prompt;
    b->stats.cached_tokens += r->cached_tokens;
    histogram_add(&b->stats.queued, (double)(r->admitted - r->arrived) * 1e-9);
    histogram_add(&b->stats.prompt_length, (double)r->n_prompt);
    histogram_add(&b->stats.computed_length, (double)(r->n_prompt - r->cached_tokens));
}

/* Gives the choice's session what is cached of its text; returns how many tokens. */
static size_t take_cached(batcher *b, choice *c)
{
    const request *r = c->request;
    if (r->embed) /* it may have started before a preemption */
        memset(c->hidden_sum, 0,
               (size_t)b->engine->program.config.hidden_size * sizeof *c->hidden_sum);
    if (r->prompt_logprobs || r->embed) return 0;
    return session_take_prefix(c->session, r->cache_key, c->tokens, c->count);
}

void slot_start(batcher *b, choice *c)
{
    request *r = c->request;
    size_t cached = 0;
    c->session = take_session(b);
    c->session->adapters = r->adapters;
    c->phase = CHOICE_RUNNING;
    count_slot(b, r);
    if (c->parked.count) {
        session_return(c->session, &c->parked, c->tokens);
    } else {
        parked_pages_free(&c->parked, &b->engine->pages); /* an empty list */
        cached = take_cached(b, c);
    }
    if (!c->preempted && c->index == 0) r->cached_tokens = cached;
    if (!r->admitted) note_admitted(b, r);
    batcher_note_progress(b, c, cached);
    b->running.items[b->running.count++] = c;
    change_queued(b, -1);
}

void batcher_keep_prefix(batcher *b, choice *c)
{
    qp_session *s = c->session;
    const size_t prompt = c->request->n_prompt;
    const bool some = batcher_is_invariant(b) && s->count > prompt;
    session_keep_prefix(s, c->request->cache_key, some ? prompt : s->count);
}

void batcher_leave_slot(batcher *b, choice *c, bool keep)
{
    if (keep) batcher_keep_prefix(b, c);
    session_truncate(c->session, 0);
    b->in_use[c->session->slot] = false;
    c->session = NULL;
    uncount_slot(b, c->request);
}

/* ---- giving a slot up ---------------------------------------------------------------------- */

/* Of an invariant batcher: the tokens that the choice has made will be made again, with the same
 * bits: computed as a part of the prompt they would have others. */
static void begin_again(const batcher *b, choice *c)
{
    if (!batcher_is_invariant(b)) return;
    c->count = c->request->n_prompt;
    choice_close_sampler(c);
    c->stops_excluded = false;
}

static void insert(choice_list *list, size_t index, choice *c)
{
    memmove(&list->items[index + 1], &list->items[index],
            (list->count++ - index) * sizeof *list->items);
    list->items[index] = c;
}

/* Inserts by age, the oldest first. */
static void wait_again(batcher *b, choice *c)
{
    size_t at = 0;
    while (at < b->waiting.count && b->waiting.items[at]->request->arrived <= c->request->arrived)
        at++;
    c->walk = (prefix_walk){0};
    c->preempted = true;
    c->phase = CHOICE_WAITING;
    insert(&b->waiting, at, c);
    change_queued(b, 1);
}

static void lose_pages(batcher *b, choice *c)
{
    b->stats.preemptions++;
    begin_again(b, c);
}

void slot_park(batcher *b, size_t index)
{
    qp_error error;
    choice *c = b->running.items[index];
    const bool slow = choice_room(c) == 0;
    choice_list_remove(&b->running, index);
    batcher_keep_prefix(b, c);
    const bool kept = session_park(c->session, &c->parked, &error) == QP_OK;
    batcher_leave_slot(b, c, false);
    if (!kept) lose_pages(b, c);
    b->stats.parked++;
    wait_again(b, c);
    if (slow) slot_stall(b, c);
}

void slot_stall(batcher *b, choice *c)
{
    c->phase = CHOICE_STALLED;
    c->stalled = clock_ns();
    b->n_stalled++;
    change_queued(b, -1);
}

void slot_wake(batcher *b, choice *c)
{
    c->phase = CHOICE_WAITING;
    b->n_stalled--;
    change_queued(b, 1);
}

bool slot_drop_parked(batcher *b, const choice *except)
{
    for (size_t i = b->waiting.count; i-- > 0;) {
        choice *c = b->waiting.items[i];
        if (c == except || !c->parked.count) continue;
        parked_pages_free(&c->parked, &b->engine->pages);
        lose_pages(b, c);
        return true;
    }
    return false;
}

bool batcher_preempt(batcher *b)
{
    size_t youngest = 0;
    if (slot_drop_parked(b, NULL)) return true;
    if (b->running.count < 2) return false;
    for (size_t i = 1; i < b->running.count; i++)
        if (b->running.items[i]->request->arrived >= b->running.items[youngest]->request->arrived)
            youngest = i;
    choice *c = b->running.items[youngest];
    choice_list_remove(&b->running, youngest);
    batcher_leave_slot(b, c, true);
    lose_pages(b, c);
    wait_again(b, c);
    return true;
}
