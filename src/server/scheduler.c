/* The scheduler: who has a slot next, and who must give one up. See batcher.h.
 *
 * Turns: the key, then the request, that has the fewest slots is next, so that a request of many
 * texts does not hold others up. Inside of a turn: choices that have had a slot first, then choices
 * that have waited longer than the age limit, then the choice with the most cached tokens. A choice
 * waits if a running choice is reading a prompt with the same beginning, because it can then share
 * those pages. Pages are counted exactly: pages that running choices need for the rest of their
 * texts are reserved, plus one more for each.
 *
 * Where no slot is free, a choice whose client reads too slowly gives its slot up, or one of the
 * key or request that has at least two slots more than the next choice's. It keeps its pages while
 * there is room, and goes on later with the same bits.
 */
#include "server/batcher_state.h"

#include "base/clock.h"

enum { LOOK_AT = 64 }; /* how many waiting choices of equal turn are considered, oldest first */

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
    const uint64_t key = session_adapters_key(&c->request->adapters, c->request->cache_key);
    prefix_tree_find(&b->engine->prefixes, key, c->tokens, c->count, &c->walk);
    return (size_t)(c->walk.n_pages * b->engine->pages.page_size);
}

/* Whether there are pages for the choice's text and for the next tokens of all running choices. */
static bool fits(const batcher *b, choice *c)
{
    const size_t cached = c->parked.count ? 0 : cached_tokens(b, c);
    const int64_t idle = cached ? prefix_tree_count_idle(&b->engine->prefixes, c->walk.last) : 0;
    const int64_t copy = cached >= c->count; /* of the page in which the last token is read again */
    const int64_t held = c->parked.pages.count + (cached ? c->walk.n_pages : 0);
    const int64_t need = pages_of(b, c->count) - held + copy;
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
        if (other->request->adapters.key != c->request->adapters.key) continue;
        if (other->session->count + 1 >= other->count) continue; /* it has read its text */
        if (atomic_load(&other->paused)) continue; /* it pauses while its client is slow */
        const size_t shared = common_prefix(other, c) / size * size;
        if (shared > cached && shared > other->session->count / size * size) return true;
    }
    return false;
}

/* How many slots the choice's key has, and its request: the fewest are next. */
typedef struct turn {
    size_t key, request;
} turn;

static turn turn_of(const batcher *b, const choice *c)
{
    return (turn){slots_of_key(b, c->request->cache_key), c->request->state->n_slots};
}

static bool is_before(turn a, turn b)
{
    return a.key != b.key ? a.key < b.key : a.request < b.request;
}

/* Whether the choice's place is before others of the same turn, whatever they have cached. */
static bool comes_first(const batcher *b, const choice *c, uint64_t now)
{
    return c->preempted || now - c->request->arrived > b->options.age_limit_ns;
}

/* The index of the next choice to admit; waiting.count: none. */
static size_t next_choice(batcher *b, uint64_t now)
{
    size_t best = b->waiting.count, most = 0, looked = 0;
    turn lowest = {SIZE_MAX, SIZE_MAX}, of_best = lowest;
    bool first = false;
    for (size_t i = 0; i < b->waiting.count; i++) {
        choice *c = b->waiting.items[i];
        const turn t = c->phase == CHOICE_WAITING ? turn_of(b, c) : lowest;
        if (c->phase != CHOICE_WAITING || is_before(of_best, t)) continue;
        if (is_before(t, lowest)) {
            lowest = t;
            looked = 0;
        }
        const bool sooner = is_before(t, of_best);
        if (looked++ >= LOOK_AT || (first && !sooner)) continue;
        const size_t cached = cached_tokens(b, c);
        if (awaits_another(b, c, cached)) continue;
        const bool now_first = comes_first(b, c, now);
        if (!sooner && !now_first && cached <= most) continue;
        best = i;
        of_best = t;
        most = cached;
        first = now_first;
    }
    return best;
}

/* Whether a running choice waits for its client. */
static bool is_paused(choice *c)
{
    return c->session->count + 1 == c->count && choice_room(c) == 0;
}

/* Whether a running choice should give its slot to `next`. */
static bool yields(const batcher *b, choice *c, const choice *next)
{
    if (is_paused(c)) return true;
    const turn own = turn_of(b, c), others = turn_of(b, next);
    if (c->request->cache_key != next->request->cache_key) return own.key > others.key + 1;
    return own.request > others.request + 1;
}

/* False if no running choice would yield to any that waits: a quick look, for long queues. */
static bool some_may_yield(const batcher *b)
{
    bool some = b->n_keys > 1;
    for (size_t i = 0; i < b->waiting.count && !some; i++)
        some = b->waiting.items[i]->request->cache_key != b->keys[0].key;
    for (size_t i = 0; i < b->running.count && !some; i++) {
        choice *c = b->running.items[i];
        some = c->request->state->n_slots > 1 || is_paused(c);
    }
    return some;
}

/* The index of the youngest running choice that should yield; running.count: none. */
static size_t find_yielding(const batcher *b, const choice *next)
{
    for (size_t i = b->running.count; i-- > 0;)
        if (yields(b, b->running.items[i], next)) return i;
    return b->running.count;
}

/* Takes pages from a choice that waits, also from one that waits for its client in a slot; false:
 * there is none. */
static bool free_pages(batcher *b, const choice *next)
{
    for (size_t i = b->running.count; i-- > 0;)
        if (is_paused(b->running.items[i])) slot_park(b, i);
    return slot_drop_parked(b, next);
}

/* ---- admission ----------------------------------------------------------------------------- */

/* Lets choices wait for a slot again whose clients have read enough. */
static void wake_stalled(batcher *b)
{
    for (size_t i = 0; b->n_stalled > 0 && i < b->waiting.count; i++) {
        choice *c = b->waiting.items[i];
        if (c->phase == CHOICE_STALLED && choice_has_room(c, RING_EVENTS / 2)) slot_wake(b, c);
    }
}

void batcher_admit(batcher *b)
{
    const uint64_t now = clock_ns();
    wake_stalled(b);
    while (b->waiting.count > b->n_stalled) {
        const bool full = b->running.count == b->n_slots;
        if (full && !some_may_yield(b)) return;
        size_t i = next_choice(b, now);
        if (i == b->waiting.count) return;
        choice *c = b->waiting.items[i];
        if (full && find_yielding(b, c) == b->running.count) return;
        while (!fits(b, c))
            if (!free_pages(b, c)) return;
        /* Asked again: clients read meanwhile. */
        const bool park = b->running.count == b->n_slots;
        const size_t yielding = park ? find_yielding(b, c) : 0;
        if (park && yielding == b->running.count) return;
        for (i = 0; b->waiting.items[i] != c; i++) /* others may wait before it since then */
            ;
        choice_list_remove(&b->waiting, i);
        if (park) slot_park(b, yielding);
        slot_start(b, c);
    }
}
