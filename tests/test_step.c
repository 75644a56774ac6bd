/* qp_step(): sequences that join, leave, fork, are cancelled and shortened at random.
 *
 * First over the machine of fake_machine.h, also with proposals of tokens, then on the machines of
 * the CPU, by tokens that are picked from logits.
 */
#include "engine_test.h"

#include "engine/engine.h"
#include "fake_machine.h"
#include "picker.h"

enum { SEQUENCES = 6, CONTEXT = 90, EVENTS = 12000 };

static qp_error error;

/* ---- what each sequence is to be ----------------------------------------------------------- */

typedef struct expected {
    fake *machine;
    qp_session *session; /* NULL: it is not open */
    qp_sampler *sampler;
    int32_t tokens[CONTEXT + 1]; /* a prompt, then what was chosen: the last is not read yet */
    size_t count, answer;
    bool penalised;
    int until, cancel; /* tokens until it wants no more in this call */
    bool receives;     /* logits, in this call */
    int received;      /* rows of them since the last token */
} expected;

static uint32_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

static int32_t next_token(const expected *x)
{
    static int32_t history[1 << 16];
    uint64_t hash = 1, had = 0;
    for (size_t i = 0; i < x->count; i++)
        hash = mix(hash, x->tokens[i]);
    if (!x->penalised) return token_of(x->machine, hash);
    memset(history, 0, sizeof history);
    for (size_t i = 0; i < x->count; i++)
        history[x->tokens[i]] =
            (history[x->tokens[i]] | ADJUST_SEEN) + (i >= x->answer ? ADJUST_ONCE : 0);
    for (int32_t i = 0; i < x->machine->program->config.vocab_size; i++)
        if (history[i]) had += history_term(i, history[i]);
    return token_of(x->machine, mix(hash, (int64_t)had));
}

static void check_session(const expected *x, size_t held)
{
    size_t count;
    const int32_t *tokens = qp_session_tokens(x->session, &count);
    assert_int_equal(count, held);
    assert_memory_equal(tokens, x->tokens, held * sizeof *tokens);
}

static qp_status take(void *context, int32_t token)
{
    expected *x = context;
    check_session(x, x->count);
    if (!x->answer) x->answer = x->count;
    assert_int_equal(token, next_token(x));
    assert_int_equal(x->received, x->receives);
    x->received = 0;
    x->tokens[x->count++] = token;
    return --x->until != 0 ? QP_OK : QP_CANCELLED;
}

static qp_status receive(void *context, size_t token, const float *logits)
{
    expected *x = context;
    (void)token;
    assert_non_null(logits);
    x->received++;
    return QP_OK;
}

static void open_sampler(expected *x)
{
    qp_sampling s = {.size = sizeof s};
    assert_int_equal(qp_sampling_defaults(x->session->engine, &s, NULL), QP_OK);
    s.n_stop_tokens = 0;
    x->penalised = draw(2);
    if (x->penalised)
        assert_ok(qp_sampling_set(&s, QP_REPETITION_PENALTY, 1.5, QP_FROM_REQUEST, &error));
    assert_ok(qp_sampler_open(x->session->engine, &s, &x->sampler, &error));
    x->answer = 0;
}

static void join(qp_engine *engine, expected *x, fake *f)
{
    *x = (expected){.machine = f, .session = open_session(engine)};
    x->count = 1 + draw(40);
    for (size_t i = 0; i < x->count; i++)
        x->tokens[i] = (int32_t)(i < 24 ? i : draw(200));
    session_take_prefix(x->session, 0, x->tokens, x->count);
    open_sampler(x);
}

static void leave(expected *x)
{
    qp_session_close(x->session);
    qp_sampler_close(x->sampler);
    x->session = NULL;
}

/* Another sequence goes on from this one's tokens, by settings of its own. */
static void fork_from(const expected *x, expected *to)
{
    size_t held;
    *to = *x;
    assert_ok(qp_session_fork(x->session, &to->session, &error));
    qp_session_tokens(to->session, &held);
    if (held == to->count) to->count = held;
    open_sampler(to);
}

static void shorten(expected *x)
{
    size_t held;
    qp_session_tokens(x->session, &held);
    if (held < 2) return;
    qp_session_truncate(x->session, held - 1 - draw((uint32_t)held - 1), NULL);
    qp_session_tokens(x->session, &held);
    x->count = held + 1; /* the next one is read again */
    if (x->answer > x->count) {
        qp_sampler_close(x->sampler);
        open_sampler(x);
    }
}

static void act(qp_engine *engine, fake *f, expected *all)
{
    expected *x = &all[draw(SEQUENCES)], *other = &all[draw(SEQUENCES)];
    switch (draw(12)) {
    case 0:
        if (x->session) leave(x);
        break;
    case 1:
        if (x->session) shorten(x);
        break;
    case 2:
        if (x->session && !other->session) fork_from(x, other);
        break;
    case 3:
        x->cancel = !x->cancel;
        break;
    case 4:
        if (x->session) session_keep_prefix(x->session, 0, x->session->count);
        break;
    case 5:
    case 6:
        if (!x->session) join(engine, x, f);
        break;
    default:
        break;
    }
}

/* A call with most of the sequences, now and then in another order. Returns how many proposals were
 * accepted. */
static size_t step(qp_engine *engine, expected *all)
{
    qp_sequence sequences[SEQUENCES];
    expected *whose[SEQUENCES];
    size_t n = 0, accepted = 0, held[SEQUENCES];
    const uint32_t shift = draw(30) ? 0 : draw(SEQUENCES);
    for (uint32_t k = 0; k < SEQUENCES; k++) {
        expected *x = &all[(k + shift) % SEQUENCES];
        if (!x->session || draw(40) == 0) continue;
        qp_session_tokens(x->session, &held[n]);
        if (x->count == CONTEXT + 1 || held[n] == CONTEXT) {
            leave(x);
            continue;
        }
        x->until = draw(20) ? 0 : 1 + (int)draw(7);
        x->receives = draw(25) == 0;
        x->received = 0;
        whose[n] = x;
        sequences[n] = (qp_sequence){.size = sizeof(qp_sequence),
                                     .session = x->session,
                                     .tokens = x->tokens + held[n],
                                     .count = x->count - held[n],
                                     .sampler = x->sampler,
                                     .max_tokens = draw(10) ? 0 : 1 + draw(9),
                                     .interval = draw(10) ? 0 : 1 + draw(3),
                                     .cancel = &x->cancel,
                                     .on_token = take,
                                     .on_logits = x->receives ? receive : NULL,
                                     .context = x};
        n++;
    }
    assert_ok(qp_step(engine, sequences, n, &error));
    for (size_t i = 0; i < n; i++) {
        const qp_sequence *s = &sequences[i];
        if (s->chosen == 0) check_session(whose[i], held[i] + s->read);
        if (s->chosen > 0) check_session(whose[i], whose[i]->count - 1);
        if (s->max_tokens) assert_true(s->chosen <= s->max_tokens);
        if (whose[i]->cancel) assert_int_equal(s->read + s->chosen, 0);
        assert_true(s->accepted <= s->proposed);
        accepted += s->accepted;
    }
    return accepted;
}

/* ---- proposals ----------------------------------------------------------------------------- */

typedef struct guesser {
    proposer proposer;
    const expected *all;
    bool silent; /* proposes nothing */
} guesser;

/* Proposes what the sequence will choose, up to a token that is drawn. */
static void guess_one(const expected *x, const speculated_sequence *s, int most)
{
    expected ahead = *x;
    speculated *p = s->slot;
    const int wrong = draw(2) ? most : (int)draw((uint32_t)most + 1);
    for (p->n_found = 0; p->n_found < most && p->n_found < s->most; p->n_found++) {
        const int32_t next = ahead.count <= CONTEXT ? next_token(&ahead) : 0;
        p->tokens[p->n_found] = p->n_found == wrong ? (next + 1) % 200 : next;
        if (ahead.count <= CONTEXT) ahead.tokens[ahead.count++] = next;
    }
    for (int i = 0; i < SPECULATE_MOST; i++)
        p->grades[i] = (uint8_t)draw(SPECULATE_GRADES);
}

static qp_status guess(proposer *self, const speculated_sequence *all, size_t n, int most,
                       qp_error *why)
{
    const guesser *g = (const guesser *)self;
    (void)why;
    for (size_t i = 0; i < n; i++)
        all[i].slot->n_found = 0;
    if (g->silent) return QP_OK;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < SEQUENCES; k++)
            if (g->all[k].session == all[i].of->session) guess_one(&g->all[k], &all[i], most);
    return QP_OK;
}

/* Rows cost nothing, so that proposals pay. */
static void make_rows_free(qp_engine *e)
{
    speculation *s = &e->speculation;
    for (int rows = 1; rows <= SPECULATE_ROWS; rows++)
        s->row_ns[rows] = 1e6;
    for (int64_t i = 0; i < e->max_sessions; i++)
        s->slots[i].lost_ns = 0;
}

static void check_pages(const qp_engine *e, const expected *all)
{
    int64_t used = 0, held = 0;
    for (int64_t p = 0; p < e->pages.n_pages; p++) {
        used += e->pages.references[p] > 0;
        held += e->pages.references[p];
    }
    for (int i = 0; i < SEQUENCES; i++)
        if (all[i].session) held -= all[i].session->pages.count;
    assert_int_equal(held, 0);
    assert_int_equal(page_pool_available(&e->pages), e->pages.n_pages - used);
}

static void sequences_join_and_leave(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 7; seed++) {
        const bool guesses = seed == 4 || seed == 5, fixed = seed > 5;
        expected all[SEQUENCES] = {{0}};
        guesser g = {.proposer = {.propose = guess, .passes = seed == 5}, .all = all};
        uint64_t accepted = 0;
        qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny",
                                                            .context = CONTEXT,
                                                            .chunk = 24,
                                                            .page_size = seed == 2 ? 1 : 4,
                                                            .max_outputs = 4 * SEQUENCES,
                                                            .max_sessions = SEQUENCES + fixed});
        if (fixed) fake_fix_shapes(engine);
        fake f;
        fake_enter(&f, engine);
        if (seed > 1) assert_ok(engine_open_prefixes(engine, &error));
        if (guesses)
            assert_ok(speculation_init(&engine->speculation, &g.proposer, SEQUENCES, &error));
        random_state = seed;
        for (int event = 0; event < EVENTS; event++) {
            act(engine, &f, all);
            if (guesses && draw(10)) make_rows_free(engine);
            if (guesses && draw(12) == 0) g.silent = !g.silent;
            accepted += step(engine, all);
            check_pages(engine, all);
        }
        assert_int_equal(f.most_under_way, 2);
        assert_true(guesses ? accepted > EVENTS / 4 : accepted == 0);
        assert_true(f.passes > (guesses ? EVENTS / 2 : EVENTS));
        assert_int_equal(f.n_shapes, fixed ? 2 : f.n_shapes);
        for (int i = 0; i < SEQUENCES; i++)
            if (all[i].session) leave(&all[i]);
        fake_leave(&f, engine);
        assert_int_equal(page_pool_available(&engine->pages), engine->pages.n_pages);
        assert_true(seed == 1 || engine->prefixes.n_taken > 0);
        qp_engine_close(engine);
    }
}

/* ---- the machines of the CPU --------------------------------------------------------------- */

static const char text_model[] = "golden/models/llama-text.gguf";

/* Everything that a request can do to logits, in turn. */
static void make_settings(qp_engine *engine, int i, qp_logit_bias *bias, qp_sampling *s)
{
    static const double temperatures[] = {0, 1, 0.6, 1.4};
    s->size = sizeof *s;
    assert_int_equal(qp_sampling_defaults(engine, s, NULL), QP_OK);
    s->n_stop_tokens = 0;
    *bias = (qp_logit_bias){17 + i, 3};
    assert_ok(qp_sampling_set(s, QP_TEMPERATURE, temperatures[i % 4], QP_FROM_REQUEST, &error));
    assert_ok(qp_sampling_set(s, QP_SEED, 50 + i, QP_FROM_REQUEST, &error));
    if (i % 2) assert_ok(qp_sampling_set(s, QP_REPETITION_PENALTY, 1.3, QP_FROM_REQUEST, &error));
    if (i % 3) assert_ok(qp_sampling_set(s, QP_FREQUENCY_PENALTY, 0.7, QP_FROM_REQUEST, &error));
    if (i % 5 == 2) assert_ok(qp_sampling_set(s, QP_PRESENCE_PENALTY, 1, QP_FROM_REQUEST, &error));
    if (i % 3 == 2) s->logit_bias = bias, s->n_logit_bias = 1;
}

typedef struct answer {
    int32_t tokens[64];
    size_t count;
} answer;

static qp_status keep(void *context, int32_t token)
{
    answer *a = context;
    a->tokens[a->count++] = token;
    return QP_OK;
}

/* A mask that changes from token to token. */
static void make_mask(uint32_t *mask, int64_t vocab, size_t made)
{
    for (int64_t w = 0; w < ADJUST_MASK_WORDS(vocab); w++)
        mask[w] = (uint32_t)hash_random(9, made, (uint64_t)w) | 1u << (made % 32);
}

static void tokens_are_picked_from_the_logits(void **state)
{
    (void)state;
    enum { N = 6, MADE = 20, PROMPT = 5 };
    static const char *const machines[] = {"threads", "operators", "reference", "serial"};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        qp_engine *engine = open_engine((qp_engine_options){
            .model = text_model, .threads = 2, .exec = machines[m], .max_sessions = N + 1});
        const int64_t vocab = qp_engine_get_info(engine)->vocab_size;
        qp_session *sessions[N];
        qp_sampler *samplers[N];
        qp_sampling settings[N];
        qp_logit_bias biases[N];
        answer answers[N] = {{{0}, 0}};
        uint32_t mask[64];
        int32_t prompt[PROMPT] = {1, 20, 30, 40, 20};
        assert_true(ADJUST_MASK_WORDS(vocab) <= 64);
        for (int i = 0; i < N; i++) {
            make_settings(engine, i, &biases[i], &settings[i]);
            sessions[i] = open_session(engine);
            assert_ok(qp_sampler_open(engine, &settings[i], &samplers[i], &error));
        }
        while (answers[N - 1].count < MADE) {
            qp_sequence all[N];
            for (int i = 0; i < N; i++) {
                const bool begun = answers[i].count > 0;
                all[i] = (qp_sequence){.size = sizeof(qp_sequence),
                                       .session = sessions[i],
                                       .tokens = begun ? &answers[i].tokens[answers[i].count - 1]
                                                       : prompt,
                                       .count = begun ? 1 : PROMPT,
                                       .sampler = samplers[i],
                                       .on_token = keep,
                                       .context = &answers[i]};
                make_mask(mask, vocab, answers[i].count);
                if (i % 4 == 3) assert_ok(qp_sampler_allow(samplers[i], mask, &error));
            }
            assert_ok(qp_step(engine, all, N, &error));
        }
        for (int i = 0; i < N; i++) {
            picker p = picker_open(vocab, &settings[i]);
            qp_session *alone = open_session(engine);
            for (int t = 0; t < PROMPT; t++)
                picker_see(&p, prompt[t]);
            for (size_t made = 0; made < MADE; made++) {
                const size_t count = made ? 1 : PROMPT;
                float *rows =
                    eval_rows(engine, alone, made ? &answers[i].tokens[made - 1] : prompt, count);
                make_mask(mask, vocab, made);
                assert_int_equal(answers[i].tokens[made],
                                 picker_pick_from(&p, rows + (count - 1) * (size_t)vocab,
                                                  i % 4 == 3 ? mask : NULL, PROMPT + made));
                free(rows);
            }
            picker_close(&p);
            qp_session_close(alone);
            qp_session_close(sessions[i]);
            qp_sampler_close(samplers[i]);
        }
        qp_engine_close(engine);
    }
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    qp_engine *engine =
        open_engine((qp_engine_options){.model = text_model, .max_sessions = 2, .context = 32});
    qp_session *a = open_session(engine), *b = open_session(engine);
    const int32_t ids[] = {1, 2, 3};
    qp_sequence two[] = {{.size = sizeof *two, .session = a, .tokens = ids, .count = 3},
                         {.size = sizeof *two, .session = b, .like = &two[0]}};
    assert_ok(qp_step(engine, two, 2, &error));
    assert_int_equal(two[0].read, 3);
    assert_int_equal(two[1].read, 3);
    assert_int_equal(qp_step(engine, two, 2, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "not empty"));
    two[1].like = &two[1];
    assert_int_equal(qp_step(engine, two, 2, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "another of the call"));
    assert_ok(qp_step(engine, NULL, 0, &error));
    qp_session_close(a);
    qp_session_close(b);
    qp_engine_close(engine);
}

static qp_status keep_last(void *last, int32_t token)
{
    *(int32_t *)last = token;
    return QP_OK;
}

/* Callers write SIZE_MAX for "without limit". */
static void counts_may_be_as_large_as_they_can(void **state)
{
    (void)state;
    qp_engine *engine = open_engine((qp_engine_options){.model = text_model, .context = 16});
    qp_session *session = open_session(engine);
    qp_sampling settings = {.size = sizeof settings};
    assert_ok(qp_sampling_defaults(engine, &settings, &error));
    qp_sampler *sampler = NULL;
    assert_ok(qp_sampler_open(engine, &settings, &sampler, &error));
    int32_t last = 1;
    qp_sequence s = {.size = sizeof s,
                     .session = session,
                     .tokens = &last,
                     .count = 1,
                     .sampler = sampler,
                     .max_tokens = SIZE_MAX,
                     .interval = SIZE_MAX,
                     .on_token = keep_last,
                     .context = &last};
    size_t held = 0;
    for (int calls = 0; held < 16; calls++) {
        assert_true(calls < 16);
        assert_ok(qp_step(engine, &s, 1, &error));
        assert_true(s.chosen >= 1);
        qp_session_tokens(session, &held);
    }
    qp_sampler_close(sampler);
    qp_session_close(session);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_join_and_leave),
        cmocka_unit_test(tokens_are_picked_from_the_logits),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(counts_may_be_as_large_as_they_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
