/* The scheduler: admission, order and preemption. See batcher.h.
 *
 * Order: preempted choices first, then choices that have waited longer than the age limit, then the
 * choice with the most cached tokens. A choice waits if a running choice is reading a prompt with
 * the same beginning, because it can then share those pages. Pages are counted exactly: pages that
 * running choices need for the rest of their texts are reserved, plus one more for each.
 */
#include "server/batcher_state.h"

#include "base/clock.h"

#include <string.h>

enum { LOOK_AT = 64 }; /* how many waiting choices are considered, oldest first */

static int64_t pages_of(const batcher *b, size_t positions)
{
    const int64_t size = b->engine->pages.page_size;
    return ((int64_t)positions + size - 1) / size;
}

/* ---- pages --------------------------------------------------------------------------------- */

/* Available pages that are not reserved. */
static int64_t pages_left(const batcher *b)
{
    int64_t left = page_pool_available(&b->engine->pages);
    for (size_t i = 0; i < b->running.count; i++) {
        const choice *c = b->running.items[i];
        const qp_session *s = c->session;
        left -= page_list_need(&s->pages, &b->engine->pages, (int64_t)s->count, (int64_t)c->count);
    }
    return left;
}

/* How many tokens of a choice's text are cached. */
static size_t cached_tokens(const batcher *b, choice *c)
{
    if (c->request->prompt_logprobs || c->request->embed) return 0;
    prefix_tree_find(&b->engine->prefixes, c->request->cache_key, c->tokens, c->count, &c->walk);
    return (size_t)(c->walk.n_pages * b->engine->pages.page_size);
}

/* Whether there are pages for the choice's text and for the next tokens of all running choices. */
static bool fits(const batcher *b, choice *c)
{
    const size_t cached = cached_tokens(b, c);
    const int64_t idle = cached ? prefix_tree_count_idle(&b->engine->prefixes, c->walk.last) : 0;
    const int64_t copy = cached >= c->count; /* of the page in which the last token is read again */
    const int64_t need = pages_of(b, c->count) - (cached ? c->walk.n_pages : 0) + copy;
    const int64_t margin = (int64_t)b->running.count;
    return b->running.count == 0 || need + idle + margin <= pages_left(b);
}

/* ---- order --------------------------------------------------------------------------------- */

static size_t common_prefix(const choice *a, const choice *c)
{
    const size_t most = a->count < c->count ? a->count : c->count;
    size_t n = 0;
    while (n < most && a->tokens[n] == c->tokens[n])
        n++;
    return n;
}

/* Whether a running choice will soon have read pages that this one could share. */
static bool awaits_another(const batcher *b, const choice *c, size_t cached)
{
    const size_t size = (size_t)b->engine->pages.page_size;
    if (!b->engine->prefixes.pool || c->request->prompt_logprobs || c->request->embed) return false;
    for (size_t i = 0; i < b->running.count; i++) {
        const choice *other = b->running.items[i];
        if (other->request->cache_key != c->request->cache_key) continue;
        if (other->session->count + 1 >= other->count) continue; /* it has read its text */
        if (atomic_load(&other->paused)) continue; /* it pauses while its client is slow */
        const size_t shared = common_prefix(other, c) / size * size;
        if (shared > cached && shared > other->session->count / size * size) return true;
    }
    return false;
}

/* The index of the next choice to admit; waiting.count: none. */
static size_t next_choice(batcher *b, uint64_t now)
{
    const uint64_t age_limit = b->options.age_limit_ns;
    size_t best = b->waiting.count, most = 0;
    for (size_t i = 0; i < b->waiting.count && i < LOOK_AT; i++) {
        choice *c = b->waiting.items[i];
        const size_t cached = cached_tokens(b, c);
        if (awaits_another(b, c, cached)) continue;
        if (c->preempted || now - c->request->arrived > age_limit) return i;
        if (best < b->waiting.count && cached <= most) continue;
        best = i;
        most = cached;
    }
    return best;
}

/* ---- admission ----------------------------------------------------------------------------- */

static qp_session *take_session(batcher *b)
{
    for (size_t i = 0; i < b->n_slots; i++) {
        if (b->in_use[i]) continue;
        b->in_use[i] = true;
        return b->sessions[i];
    }
    return NULL;
}

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
}

static void start(batcher *b, choice *c)
{
    request *r = c->request;
    c->session = take_session(b);
    c->phase = CHOICE_RUNNING;
    if (r->embed) /* it may have started before a preemption */
        memset(c->hidden_sum, 0,
               (size_t)b->engine->program.config.hidden_size * sizeof *c->hidden_sum);
    size_t cached = 0;
    if (!r->prompt_logprobs && !r->embed)
        cached = session_take_prefix(c->session, r->cache_key, c->tokens, c->count);
    if (!c->preempted && c->index == 0) r->cached_tokens = cached;
    if (!r->admitted) note_admitted(b, r);
    batcher_note_progress(b, c, cached);
    b->running.items[b->running.count++] = c;
    change_queued(b, -1);
}

void batcher_admit(batcher *b)
{
    const uint64_t now = clock_ns();
    while (b->waiting.count > 0 && b->running.count < b->n_slots) {
        const size_t i = next_choice(b, now);
        if (i == b->waiting.count || !fits(b, b->waiting.items[i])) return;
        choice *c = b->waiting.items[i];
        choice_list_remove(&b->waiting, i);
        start(b, c);
    }
}

/* ---- preemption ---------------------------------------------------------------------------- */

void batcher_keep_prefix(batcher *b, choice *c)
{
    qp_session *s = c->session;
    const size_t prompt = c->request->n_prompt;
    const bool some = batcher_is_invariant(b) && s->count > prompt;
    session_keep_prefix(s, c->request->cache_key, some ? prompt : s->count);
}

/* The tokens that the choice has made will be made again, with the same bits: computed as a part of
 * the prompt they would have others. */
static void begin_again(choice *c)
{
    c->count = c->request->n_prompt;
    choice_close_sampler(c);
    c->stops_excluded = false;
}

void batcher_leave_slot(batcher *b, choice *c, bool keep)
{
    if (keep) batcher_keep_prefix(b, c);
    qp_session_truncate(c->session, 0);
    b->in_use[c->session->slot] = false;
    c->session = NULL;
}

/* Inserts by age, the oldest first. */
static void wait_again(batcher *b, choice *c)
{
    size_t at = 0;
    while (at < b->waiting.count && b->waiting.items[at]->request->arrived <= c->request->arrived)
        at++;
    memmove(&b->waiting.items[at + 1], &b->waiting.items[at],
            (b->waiting.count++ - at) * sizeof *b->waiting.items);
    b->waiting.items[at] = c;
}

bool batcher_preempt(batcher *b)
{
    size_t youngest = 0;
    if (b->running.count < 2) return false;
    for (size_t i = 1; i < b->running.count; i++)
        if (b->running.items[i]->request->arrived >= b->running.items[youngest]->request->arrived)
            youngest = i;
    choice *c = b->running.items[youngest];
    b->stats.preemptions++;
    choice_list_remove(&b->running, youngest);
    batcher_leave_slot(b, c, true);
    if (batcher_is_invariant(b)) begin_again(c);
    c->phase = CHOICE_WAITING;
    c->preempted = true;
    c->walk = (prefix_walk){0};
    wait_again(b, c);
    change_queued(b, 1);
    return true;
}
