/* The batcher against a simple model: requests come, are cancelled, read slowly and share prefixes
 * at random, over few pages.
 *
 * The machine of fake_machine.h makes each token a hash of all tokens before it as the pages hold
 * them. So the tokens of an answer follow from its prompt alone, whatever ran beside it, came from
 * the cache, was preempted or lay in which slot; a page that is lost, shared wrongly or written to
 * by another shows as a wrong token. After each event all pages are counted.
 *
 * QUIPU_BATCHER_EVENTS=1000000 makes it longer.
 */
#include "engine_test.h"

#include "fake_machine.h"
#include "server/batcher_state.h"

static qp_error error;

enum { CONTEXT = 144, PAGE = 4, SLOTS = 5, OPEN = 12, EVENTS = 100000, LONGEST_WAIT = 3000 };

/* A request and what its choices must say. */
typedef struct expected {
    request *request; /* NULL: none */
    size_t seen[3];   /* tokens that came of each choice */
    bool ended[3], slow;
    int patience; /* turns that it may still take */
} expected;

typedef struct world {
    fake machine;
    qp_engine *engine;
    batcher *batcher;
    expected all[OPEN];
    uint32_t random;
    int64_t finished, cancelled, cached, preempted;
} world;

static uint32_t draw(world *w, uint32_t below)
{
    w->random = w->random * 1664525u + 1013904223u;
    return (w->random >> 8) % below;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Prompts are a few trees of texts, so that beginnings are shared. */
static void make_prompt(world *w, request *r)
{
    r->n_prompt = 1 + draw(w, draw(w, 4) ? 24 : CONTEXT - 1);
    r->prompt = malloc(r->n_prompt * sizeof *r->prompt);
    uint32_t text = draw(w, 3);
    for (size_t i = 0; i < r->n_prompt; i++) {
        if (draw(w, 20) == 0) text = text * 7 + draw(w, 3);
        r->prompt[i] = (int32_t)((text * 31 + (uint32_t)i * 5) % 200);
    }
}

static void submit(world *w, expected *x)
{
    request *r = request_new();
    *x = (expected){.request = r, .slow = draw(w, 6) == 0, .patience = LONGEST_WAIT};
    make_prompt(w, r);
    assert_ok(qp_sampling_defaults(w->engine, &r->sampling, &error));
    r->sampling.n_stop_tokens = draw(w, 2) ? 0 : 8;
    for (size_t i = 0; i < r->sampling.n_stop_tokens; i++)
        r->sampling.stop_tokens[i] = (int32_t)(i * 25 + 3);
    r->n_choices = draw(w, 4) ? 1 : 1 + draw(w, 3);
    r->max_tokens = draw(w, 5) ? 1 + draw(w, 30) : 0;
    r->min_tokens = draw(w, 3) ? 0 : draw(w, 20);
    r->ignore_eos = draw(w, 5) == 0;
    r->prompt_only = draw(w, 12) == 0;
    r->prompt_logprobs = draw(w, 12) == 0;
    r->top_logprobs = draw(w, 6) ? -1 : (int)draw(w, 3);
    r->cache_key = draw(w, 4) == 0;
    r->deadline = draw(w, 50) ? 0 : 1;
    assert_ok(batcher_submit(w->batcher, r, &error));
}

/* ---- the model ----------------------------------------------------------------------------- */

static bool is_stop(const request *r, int32_t token)
{
    for (size_t i = 0; i < r->sampling.n_stop_tokens; i++)
        if (r->sampling.stop_tokens[i] == token) return true;
    return false;
}

static int32_t next_token(const world *w, const request *r, const int32_t *made, size_t n_made)
{
    uint64_t hash = 1;
    for (size_t i = 0; i < r->n_prompt; i++)
        hash = mix(hash, r->prompt[i] | (w->machine.kinds ? FAKE_PROMPT : 0));
    for (size_t i = 0; i < n_made; i++)
        hash = mix(hash, made[i]);
    int32_t token = token_of(&w->machine, hash);
    while (!r->ignore_eos && n_made < r->min_tokens && is_stop(r, token))
        token = (token + 1) % (int32_t)w->engine->program.config.vocab_size;
    return token;
}

static void check_end(const world *w, const request *r, const token_event *end, size_t n_made)
{
    const size_t most = CONTEXT - r->n_prompt;
    const int32_t *made = r->choices[0].tokens + r->n_prompt;
    (void)w, (void)made;
    switch (end->finish) {
    case QP_FINISH_STOP_TOKEN:
        assert_false(r->ignore_eos);
        assert_true(is_stop(r, end->token));
        assert_true(n_made >= r->min_tokens);
        break;
    case QP_FINISH_LENGTH:
        assert_int_equal(n_made, r->prompt_only ? 0 : r->max_tokens);
        break;
    case QP_FINISH_CONTEXT:
        assert_int_equal(n_made, most);
        break;
    case REQUEST_TIMED_OUT:
        assert_int_equal(r->deadline, 1);
        break;
    default:
        assert_int_equal(end->finish, QP_FINISH_CANCELLED);
    }
}

static void read_choice(world *w, expected *x, size_t i)
{
    request *r = x->request;
    const int32_t *made = r->choices[i].tokens + r->n_prompt;
    token_event event;
    while (request_next(r, i, &event)) {
        assert_false(x->ended[i]);
        const size_t seen = x->seen[i];
        if (event.last) {
            x->ended[i] = true;
            check_end(w, r, &event, seen);
            if (event.finish == QP_FINISH_STOP_TOKEN)
                assert_int_equal(event.token, next_token(w, r, made, seen));
            w->cancelled += event.finish == QP_FINISH_CANCELLED;
            continue;
        }
        assert_int_equal(event.token, next_token(w, r, made, seen));
        assert_int_equal(event.token, made[seen]);
        assert_int_equal(event.n_top, r->top_logprobs > 0 ? r->top_logprobs : 0);
        x->seen[i]++;
    }
}

/* Reads what there is, and lets the request go when all of it has come. */
static void read_request(world *w, expected *x)
{
    request *r = x->request;
    bool ended = true;
    for (size_t i = 0; i < r->n_choices; i++) {
        read_choice(w, x, i);
        ended &= x->ended[i];
    }
    if (!ended) return;
    w->finished++;
    w->cached += r->cached_tokens > 0;
    for (size_t i = 0; i < r->n_choices; i++)
        w->preempted += r->choices[i].preempted;
    request_release(r);
    x->request = NULL;
}

/* As workers do: the requests that are said to have events. */
static void read_ready(world *w)
{
    for (request *r; (r = batcher_take_ready(w->batcher)); request_release(r)) {
        expected *x = NULL;
        for (int i = 0; i < OPEN; i++)
            if (w->all[i].request == r) x = &w->all[i];
        do {
            if (x && x->request && !x->slow) read_request(w, x);
        } while (!request_drained(r));
    }
}

/* ---- what must always hold ----------------------------------------------------------------- */

static void check_pages(const world *w)
{
    const page_pool *pool = &w->engine->pages;
    int64_t held = 0, free_pages = 0, idle = 0, kept = 0;
    for (int64_t p = 0; p < pool->n_pages; p++) {
        held += pool->references[p];
        kept += pool->kept[p];
        idle += pool->kept[p] && pool->references[p] == 0;
        free_pages += !pool->kept[p] && pool->references[p] == 0;
    }
    for (size_t i = 0; i < w->batcher->running.count; i++)
        held -= w->batcher->running.items[i]->session->pages.count;
    for (size_t i = 0; i < w->batcher->waiting.count; i++)
        held -= w->batcher->waiting.items[i]->parked.pages.count;
    assert_int_equal(held, 0);
    assert_int_equal(free_pages, pool->n_free);
    assert_int_equal(idle, pool->n_idle);
    assert_int_equal(kept, w->engine->prefixes.n_nodes);
}

static void check_choices(const world *w)
{
    size_t open = 0;
    for (int i = 0; i < OPEN; i++) {
        const request *r = w->all[i].request;
        for (size_t c = 0; r && c < r->n_choices; c++) {
            choice *one = &r->choices[c];
            assert_true(atomic_load(&one->written) - atomic_load(&one->read) <= RING_EVENTS);
            open += one->phase != CHOICE_ENDED;
        }
    }
    assert_int_equal(open, w->batcher->running.count + w->batcher->waiting.count +
                               w->batcher->submitted.count);
    assert_int_equal(open, w->batcher->n_open);
}

/* A snapshot says what is; users of each row of the tree are the sequences that hold its pages. */
static void check_snapshot(const world *w)
{
    batcher *b = w->batcher;
    atomic_store(&b->snapshot_wanted, true);
    stats_answer(b);
    const batcher_stats *s = &b->snapshot;
    size_t pages = 0, decoding = 0;
    assert_int_equal(s->running + s->waiting + b->n_stalled, s->n_sequences);
    assert_int_equal(s->pages_used + s->pages_cached + (size_t)w->engine->pages.n_free,
                     s->pages_total);
    for (size_t i = 0; i < s->n_tree; i++) {
        const tree_stats *row = &s->tree[i];
        size_t parent = 0;
        while (parent < i && s->tree[parent].id != row->parent)
            parent++;
        assert_true(row->parent == 0 || parent < i);
        assert_int_equal(row->tokens, row->pages * PAGE);
        pages += row->pages;
    }
    assert_int_equal(pages, w->engine->prefixes.n_nodes);
    for (size_t i = 0; i < s->n_sequences; i++) {
        size_t row = 0;
        while (row < s->n_tree && s->tree[row].id != s->sequences[i].node)
            row++;
        assert_true(s->sequences[i].node == 0 || row < s->n_tree);
        decoding += s->sequences[i].state == SEQUENCE_DECODING;
    }
    assert_true(decoding <= SLOTS);
}

/* A request that is read ends in time, however slowly others are read. */
static void turn(world *w)
{
    batcher_turn(w->batcher);
    for (int i = 0; i < OPEN; i++)
        if (w->all[i].request && !w->all[i].slow) assert_true(w->all[i].patience-- > 0);
}

static void act(world *w)
{
    expected *x = &w->all[draw(w, OPEN)];
    switch (draw(w, 12)) {
    case 0:
    case 1:
    case 2:
        if (!x->request) submit(w, x);
        break;
    case 3:
        if (x->request && draw(w, 4) == 0)
            request_cancel(x->request, draw(w, 2) ? REQUEST_ALL_CHOICES : 0);
        break;
    case 4:
        if (x->request && x->slow) read_request(w, x);
        break;
    case 5:
        x->slow = x->slow && draw(w, 8);
        if (x->request) read_request(w, x);
        break;
    case 6:
        read_ready(w);
        break;
    default:
        turn(w);
    }
}

static void end_all(world *w)
{
    for (int turns = 0; turns < OPEN * LONGEST_WAIT; turns++) {
        batcher_turn(w->batcher);
        size_t left = 0;
        for (int i = 0; i < OPEN; i++) {
            if (w->all[i].request) read_request(w, &w->all[i]);
            left += w->all[i].request != NULL;
        }
        if (left == 0) return;
    }
    fail_msg("requests never end");
}

static void requests_come_and_go(void **state)
{
    (void)state;
    const char *wanted = getenv("QUIPU_BATCHER_EVENTS");
    const long events = wanted ? atol(wanted) : EVENTS;
    for (uint32_t seed = 1; seed <= 6; seed++) {
        const bool fixed = seed > 4; /* passes of fixed shapes */
        world w = {.random = seed};
        w.engine =
            open_engine((qp_engine_options){.model = "synthetic:tiny",
                                            .context = CONTEXT,
                                            .chunk = seed == 2 ? 7 : 24,
                                            .page_size = PAGE,
                                            .pages = (seed == 3 ? 1 : 2) * CONTEXT / PAGE + fixed,
                                            .max_outputs = seed == 4 ? 32 : 0,
                                            .max_sessions = SLOTS + fixed});
        if (fixed) fake_fix_shapes(w.engine);
        fake_enter(&w.machine, w.engine);
        w.machine.kinds = fixed;
        assert_ok(batcher_create(
            &(batcher_options){.age_limit_ns = seed == 1 ? 1 : 0, .prompt_ns = seed == 2 ? 1 : 0},
            w.engine, &w.batcher, &error));
        for (long event = 0; event < events / 6; event++) {
            act(&w);
            check_pages(&w);
            check_choices(&w);
            if (event % 8 == 0) check_snapshot(&w);
        }
        const batcher_stats *s = &w.batcher->stats;
        assert_int_equal(s->batch_length.count, s->steps);
        assert_true(s->generated_tokens > (uint64_t)w.finished && s->preemptions > 0);
        assert_true(s->parked > 0);
        end_all(&w);
        check_pages(&w);
        if (wanted)
            print_message("%ld %ld %ld %ld\n", (long)w.finished, (long)w.cancelled, (long)w.cached,
                          (long)w.preempted);
        assert_true(w.finished > events / 150);
        assert_true(w.cancelled > 0);
        assert_true(w.cached > 0);
        assert_true(w.preempted > 0);
        assert_int_equal(page_pool_available(&w.engine->pages), w.engine->pages.n_pages);
        batcher_close(w.batcher);
        fake_leave(&w.machine, w.engine);
        qp_engine_close(w.engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_come_and_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
