/* Histograms and snapshots of the batcher: see statistics.h. */
#include "server/statistics.h"

#include "base/clock.h"
#include "base/status.h"
#include "server/batcher_state.h"

#include <stdlib.h>
#include <string.h>

const double *histogram_bounds(histogram_unit unit)
{
    static const double bounds[][HISTOGRAM_BOUNDS] = {
        [HISTOGRAM_SECONDS] = {.0005, .001, .002, .005, .01, .02, .04, .06, .08, .1, .15,
                               .25,   .5,   .75,  1,    2.5, 5,   10,  20,  40,  80, 160},
        [HISTOGRAM_TOKENS] = {1,     2,      4,      8,      16,      32,     64,    128,
                              256,   512,    1024,   2048,   4096,    8192,   16384, 32768,
                              65536, 131072, 262144, 524288, 1048576, 2097152}};
    return bounds[unit];
}

void histogram_add(histogram *h, double value)
{
    const double *bounds = histogram_bounds(h->unit);
    size_t i = 0;
    while (i < HISTOGRAM_BOUNDS && value > bounds[i])
        i++;
    h->counts[i]++;
    h->count++;
    h->sum += value;
}

const char *sequence_state_name(sequence_state state)
{
    static const char *const names[] = {"waiting", "prompt", "decoding", "paused"};
    return names[state];
}

void stats_init(batcher_stats *s)
{
    s->prompt_length.unit = s->answer_length.unit = s->batch_length.unit = HISTOGRAM_TOKENS;
    s->most_tokens.unit = s->computed_length.unit = HISTOGRAM_TOKENS;
    s->longest_answer.unit = s->choices.unit = HISTOGRAM_TOKENS;
}

void stats_add_pass(batcher_stats *s, pass_stats pass)
{
    if (s->n_recent == STATS_PASSES)
        memmove(s->recent, s->recent + 1, --s->n_recent * sizeof *s->recent);
    s->recent[s->n_recent++] = pass;
    s->steps++;
    s->passes += pass.passes;
    histogram_add(&s->batch_length, (double)(pass.prompt_tokens + pass.decode_tokens));
}

/* ---- sequences ----------------------------------------------------------------------------- */

static sequence_state state_of(const choice *c)
{
    if (c->phase == CHOICE_STALLED) return SEQUENCE_PAUSED;
    if (c->phase == CHOICE_WAITING) return SEQUENCE_WAITING;
    if (atomic_load(&c->paused)) return SEQUENCE_PAUSED;
    return c->session->count + 1 < c->count || c->count == c->request->n_prompt ? SEQUENCE_PROMPT
                                                                                : SEQUENCE_DECODING;
}

/* The deepest node of the tree whose page the session holds; 0: none. */
static int64_t node_of(const qp_session *s)
{
    int64_t n = s->n_kept;
    while (n < s->pages.count && s->engine->pages.kept[s->pages.pages[n]])
        n++;
    return n ? s->pages.pages[n - 1] + 1 : 0;
}

static sequence_stats sequence_of(const choice *c)
{
    const request *r = c->request;
    const qp_session *s = c->session;
    uint64_t adapters = 0;
    for (int64_t i = 0; i < r->adapters.n; i++)
        adapters |= UINT64_C(1) << r->adapters.of[i].adapter;
    return (sequence_stats){.id = r->state->id,
                            .choice = c->index,
                            .state = state_of(c),
                            .prompt_tokens = r->n_prompt,
                            .cached_tokens = r->cached_tokens,
                            .positions = s ? s->count : 0,
                            .generated = c->count - r->n_prompt,
                            .max_tokens = r->max_tokens,
                            .pages = (size_t)(s ? s->pages : c->parked.pages).count,
                            .adapters = adapters,
                            .slot = s ? s->slot : -1,
                            .node = s ? node_of(s) : 0};
}

static void add_sequences(const choice_list *list, batcher_stats *out)
{
    for (size_t i = 0; i < list->count; i++)
        out->sequences[out->n_sequences++] = sequence_of(list->items[i]);
}

/* ---- the tree ------------------------------------------------------------------------------ */

/* Children of pages as lists: of page p they begin at first[p + 1], those of the root at first[0].
 * Arrays of n_pages + 1, in one allocation. */
typedef struct tree_walk {
    int32_t *first, *sibling, *stack, *parents; /* -1 ends a list */
    size_t n_stacked;
} tree_walk;

static bool link_children(const prefix_tree *t, tree_walk *w)
{
    const int64_t n = t->pool->n_pages + 1;
    w->first = malloc((size_t)n * 4 * sizeof *w->first);
    if (!w->first) return false;
    w->sibling = w->first + n;
    w->stack = w->sibling + n;
    w->parents = w->stack + n;
    for (int64_t i = 0; i < n; i++)
        w->first[i] = -1;
    for (int32_t page = 0; page < n - 1; page++) {
        if (!t->pool->kept[page]) continue;
        int32_t *list = &w->first[t->parents[page] + 1];
        w->sibling[page] = *list;
        *list = page;
    }
    return true;
}

static void push_children(tree_walk *w, int32_t page)
{
    for (int32_t child = w->first[page + 1]; child >= 0; child = w->sibling[child]) {
        w->stack[w->n_stacked] = child;
        w->parents[w->n_stacked++] = page;
    }
}

/* The row that begins with a page. Returns its last page. */
static int32_t make_row(const prefix_tree *t, const tree_walk *w, int32_t page, tree_stats *row)
{
    const int32_t users = t->pool->references[page];
    row->users = (size_t)users;
    for (;;) {
        row->pages++;
        row->tokens += (size_t)t->pool->page_size;
        const int32_t child = w->first[page + 1];
        const bool alone = child >= 0 && w->sibling[child] < 0;
        if (!alone || t->pool->references[child] != users) break;
        page = child;
    }
    row->id = page + 1;
    return page;
}

static bool add_tree(const prefix_tree *t, batcher_stats *out)
{
    tree_walk w = {0};
    if (!t->pool) return true;
    if (!link_children(t, &w)) return false;
    push_children(&w, -1);
    while (w.n_stacked > 0 && out->n_tree < STATS_NODES) {
        tree_stats *row = &out->tree[out->n_tree++];
        const int32_t page = w.stack[--w.n_stacked];
        *row = (tree_stats){.parent = w.parents[w.n_stacked] + 1};
        push_children(&w, make_row(t, &w, page, row));
    }
    free(w.first);
    return true;
}

/* ---- snapshots ----------------------------------------------------------------------------- */

/* The part that the engine thread does; false: no memory. */
static bool collect(const batcher *b, batcher_stats *out)
{
    const page_pool *pages = &b->engine->pages;
    *out = b->stats;
    out->time = clock_ns();
    out->slots = b->n_slots;
    out->waiting = b->waiting.count - b->n_stalled;
    out->running = b->running.count;
    out->page_size = (size_t)pages->page_size;
    out->pages_total = (size_t)pages->n_pages;
    out->pages_cached = (size_t)pages->n_idle;
    out->pages_used = (size_t)(pages->n_pages - page_pool_available(pages));
    out->sequences = malloc((b->running.count + b->waiting.count + 1) * sizeof *out->sequences);
    if (!out->sequences) return false;
    add_sequences(&b->running, out);
    add_sequences(&b->waiting, out);
    return add_tree(&b->engine->prefixes, out);
}

void stats_answer(batcher *b)
{
    if (!atomic_load(&b->snapshot_wanted)) return;
    pthread_mutex_lock(&b->mutex);
    batcher_stats_free(&b->snapshot);
    b->snapshot_failed = !collect(b, &b->snapshot);
    b->n_snapshots++;
    atomic_store(&b->snapshot_wanted, false);
    pthread_cond_broadcast(&b->answered);
    pthread_mutex_unlock(&b->mutex);
}

qp_status batcher_snapshot(batcher *b, batcher_stats *out, qp_error *error)
{
    pthread_mutex_lock(&b->mutex);
    const uint64_t before = b->n_snapshots;
    atomic_store(&b->snapshot_wanted, true);
    b->signalled = true;
    pthread_cond_signal(&b->work);
    while (b->n_snapshots == before && !b->ended)
        pthread_cond_wait(&b->answered, &b->mutex);
    if (b->n_snapshots == before) {
        pthread_mutex_unlock(&b->mutex);
        return error_set(error, QP_CANCELLED, "the server is ending and has no state to show");
    }
    *out = b->snapshot;
    const size_t bytes = (out->n_sequences + 1) * sizeof *out->sequences;
    out->sequences = b->snapshot_failed ? NULL : malloc(bytes);
    if (out->sequences) memcpy(out->sequences, b->snapshot.sequences, bytes);
    pthread_mutex_unlock(&b->mutex);
    return out->sequences ? QP_OK : error_no_memory(error, "a snapshot", bytes);
}

void batcher_stats_free(batcher_stats *s)
{
    free(s->sequences);
    s->sequences = NULL;
}
