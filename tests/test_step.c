/* qp_step(): sequences that join, leave, fork, are cancelled and shortened at random.
 *
 * A machine of the test's own stands in for a GPU: it has runs under way, which do their work when
 * they are waited for, and its tokens are a hash of all that it finds in the pages of a sequence
 * and in the history of its slot. So a token is right only if pages, copies of pages, histories and
 * the passes under way all are. Then the machines of the CPU, by tokens that are picked from
 * logits.
 */
#include "engine_test.h"

#include "base/hash.h"
#include "engine/engine.h"
#include "op/adjust_logits/adjust_logits.h"
#include "picker.h"

enum { SEQUENCES = 6, CONTEXT = 90, EVENTS = 12000, ENTRIES = 64 };

static qp_error error;

/* ---- the machine --------------------------------------------------------------------------- */

typedef struct entry { /* a run, or the copy of a page */
    machine_request request;
    batch batch; /* as it was; no memory: a copy */
    int32_t from, to;
} entry;

typedef struct fake {
    const program *program;
    int32_t *cache;   /* [pages][page_size]: the token at each position */
    int32_t *history; /* [slots][vocab_size] */
    int32_t last[SEQUENCES];
    entry queue[ENTRIES];
    int n_queued, n_done, under_way;
    int64_t most_under_way, passes;
} fake;

static uint64_t mix(uint64_t hash, int64_t value)
{
    return hash_mix(hash ^ (uint64_t)value);
}

/* What a history adds to the hash, however it came about. */
static uint64_t history_term(int32_t token, int32_t seen)
{
    return hash_mix((uint64_t)token * 1000 + (uint64_t)seen);
}

static int32_t token_of(const fake *f, uint64_t hash)
{
    return (int32_t)(hash % (uint64_t)f->program->config.vocab_size);
}

static int32_t *cell(fake *f, const batch *b, int64_t sequence, int64_t position)
{
    const int64_t size = f->program->options.page_size;
    const int32_t at = batch_i32(b, PLAN_KV_INDPTR)[sequence] + (int32_t)(position / size);
    assert_true(at < batch_i32(b, PLAN_KV_INDPTR)[sequence + 1]);
    return &f->cache[batch_i32(b, PLAN_KV_INDICES)[at] * size + position % size];
}

static int32_t choose(fake *f, const batch *b, int64_t output, int64_t sequence, int64_t end,
                      int pass)
{
    const int64_t vocab = f->program->config.vocab_size;
    int32_t *history = f->history + batch_i32(b, PLAN_SLOTS)[output] * vocab;
    int32_t uses = batch_i32(b, PLAN_USES)[output];
    uint64_t hash = 1, had = 0;
    for (int64_t p = 0; p < end; p++)
        hash = mix(hash, *cell(f, b, sequence, p));
    if (!(uses & ADJUST_PENALISE)) return token_of(f, hash);
    if (uses & ADJUST_COUNT || pass > 0) {
        int32_t *entry = &history[*cell(f, b, sequence, end - 1)];
        *entry = (*entry | ADJUST_SEEN) + ADJUST_ONCE;
    }
    for (int32_t i = 0; i < vocab; i++)
        if (history[i]) had += history_term(i, history[i]);
    return token_of(f, mix(hash, (int64_t)had));
}

static void do_run(fake *f, const entry *e)
{
    const machine_request *r = &e->request;
    const batch *b = &e->batch;
    const int64_t n = batch_outputs(b);
    for (int pass = 0; pass < (r->passes ? r->passes : 1); pass++, f->passes++) {
        for (int64_t s = 0; s < b->sizes.of[AXIS_SEQUENCES]; s++)
            for (int32_t i = batch_i32(b, PLAN_QO_INDPTR)[s];
                 i < batch_i32(b, PLAN_QO_INDPTR)[s + 1]; i++) {
                const bool fed = pass > 0 || r->continues;
                *cell(f, b, s, batch_i32(b, PLAN_POSITION_IDS)[i] + pass) =
                    fed ? f->last[s] : batch_i32(b, PLAN_TOKEN_IDS)[i];
            }
        for (int64_t o = 0; r->choice != MACHINE_LOGITS && o < n; o++) {
            const int32_t row = batch_i32(b, PLAN_OUTPUT_ROWS)[o];
            int64_t s = 0;
            while (batch_i32(b, PLAN_QO_INDPTR)[s + 1] <= row)
                s++;
            const int64_t end = batch_i32(b, PLAN_POSITION_IDS)[row] + pass + 1;
            r->tokens[pass * n + o] = choose(f, b, o, s, end, pass);
        }
        for (int64_t o = 0; r->choice != MACHINE_LOGITS && o < n && o < SEQUENCES; o++)
            f->last[o] = r->tokens[pass * n + o];
    }
}

static void do_copy(fake *f, int32_t from, int32_t to)
{
    const int64_t size = f->program->options.page_size;
    memcpy(f->cache + to * size, f->cache + from * size, (size_t)size * sizeof *f->cache);
}

static const char *fake_accepts(const void *self, const machine_request *r)
{
    const fake *f = self;
    if (r->continues && f->under_way == 0) return "there is nothing that it could continue";
    if (r->continues && !batch_decodes(r->batch)) return "it is another batch";
    return NULL;
}

static machine_pace fake_pace(const void *self, int64_t n, machine_choice choice)
{
    (void)self, (void)n, (void)choice;
    return (machine_pace){.passes = 5, .runs = 2};
}

static entry *queue(fake *f)
{
    assert_true(f->n_queued - f->n_done < ENTRIES);
    return &f->queue[f->n_queued++ % ENTRIES];
}

static qp_status fake_run(void *self, const machine_request *r, qp_error *why)
{
    fake *f = self;
    entry *e = queue(f);
    *e = (entry){.request = *r, .from = -1};
    assert_ok(batch_init(&e->batch, f->program, why));
    e->batch.sizes = r->batch->sizes;
    memcpy(e->batch.memory, r->batch->memory, r->batch->memory_bytes);
    f->under_way++;
    if (f->under_way > f->most_under_way) f->most_under_way = f->under_way;
    return QP_OK;
}

static qp_status fake_wait(void *self, int *passes, qp_error *why)
{
    fake *f = self;
    (void)why;
    for (;;) {
        assert_true(f->n_done < f->n_queued);
        entry *e = &f->queue[f->n_done++ % ENTRIES];
        if (e->from >= 0) {
            do_copy(f, e->from, e->to);
            continue;
        }
        const machine_request *r = &e->request;
        do_run(f, e);
        f->under_way--;
        *passes = r->passes ? r->passes : 1;
        const int64_t n = batch_outputs(&e->batch);
        for (int pass = 0; r->on_tokens && pass < *passes; pass++)
            if (!r->on_tokens(r->context, r->tokens + pass * n)) break;
        batch_free(&e->batch);
        return QP_OK;
    }
}

static qp_status fake_write(void *self, plan_tensor_id id, int64_t slot, const void *data,
                            size_t bytes, qp_error *why)
{
    fake *f = self;
    (void)why;
    assert_int_equal(f->under_way, 0);
    if (id == PLAN_HISTORY) memcpy(f->history + slot * f->program->config.vocab_size, data, bytes);
    return QP_OK;
}

static qp_status fake_copy_page(void *self, int32_t from, int32_t to, qp_error *why)
{
    fake *f = self;
    (void)why;
    if (f->under_way == 0 && f->n_done == f->n_queued)
        do_copy(f, from, to);
    else
        *queue(f) = (entry){.from = from, .to = to};
    return QP_OK;
}

static float *fake_logits(void *self)
{
    static float row[1 << 16];
    (void)self;
    return row;
}

static const machine_type fake_type = {.name = "fake",
                                       .accepts = fake_accepts,
                                       .pace = fake_pace,
                                       .run = fake_run,
                                       .wait = fake_wait,
                                       .write = fake_write,
                                       .logits = fake_logits,
                                       .copy_page = fake_copy_page};

/* ---- what each sequence is to be ----------------------------------------------------------- */

typedef struct expected {
    fake *machine;
    qp_session *session; /* NULL: it is not open */
    qp_sampler *sampler;
    int32_t tokens[CONTEXT + 1]; /* a prompt, then what was chosen: the last is not read yet */
    size_t count, prompt, answer;
    bool penalised;
    int until, cancel; /* tokens until it wants no more in this call */
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

static bool take(void *context, int32_t token)
{
    expected *x = context;
    check_session(x, x->count);
    if (!x->answer) x->answer = x->count;
    assert_int_equal(token, next_token(x));
    x->tokens[x->count++] = token;
    return --x->until != 0;
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
    x->count = x->prompt = 1 + draw(40);
    for (size_t i = 0; i < x->count; i++)
        x->tokens[i] = (int32_t)draw(200);
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
    qp_session_truncate(x->session, held - 1 - draw((uint32_t)held - 1));
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
    case 5:
        if (!x->session) join(engine, x, f);
        break;
    default:
        break;
    }
}

/* A call with most of the sequences, now and then in another order. */
static void step(qp_engine *engine, expected *all)
{
    qp_sequence sequences[SEQUENCES];
    expected *whose[SEQUENCES];
    size_t n = 0, held[SEQUENCES];
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
    }
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
    assert_int_equal(e->pages.n_free, e->pages.n_pages - used);
}

static void sequences_join_and_leave(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        expected all[SEQUENCES] = {{0}};
        qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny",
                                                            .context = CONTEXT,
                                                            .chunk = 24,
                                                            .page_size = seed == 2 ? 1 : 4,
                                                            .max_sessions = SEQUENCES});
        fake f = {.program = &engine->program};
        const size_t vocab = (size_t)engine->program.config.vocab_size;
        f.cache = calloc((size_t)engine->pages.n_pages * 4, sizeof *f.cache);
        f.history = calloc(SEQUENCES * vocab, sizeof *f.history);
        const machine own = engine->slots[ENGINE_MACHINES - 1];
        engine->slots[ENGINE_MACHINES - 1] = (machine){.type = &fake_type, .self = &f};
        random_state = seed;
        for (int event = 0; event < EVENTS; event++) {
            act(engine, &f, all);
            step(engine, all);
            check_pages(engine, all);
        }
        assert_int_equal(f.most_under_way, 2);
        assert_true(f.passes > EVENTS);
        for (int i = 0; i < SEQUENCES; i++)
            if (all[i].session) leave(&all[i]);
        step_drop(engine);
        assert_int_equal(engine->pages.n_free, engine->pages.n_pages);
        assert_int_equal(f.under_way, 0);
        engine->slots[ENGINE_MACHINES - 1] = own;
        free(f.cache);
        free(f.history);
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

static bool keep(void *context, int32_t token)
{
    answer *a = context;
    a->tokens[a->count++] = token;
    return true;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_join_and_leave),
        cmocka_unit_test(tokens_are_picked_from_the_logits),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
