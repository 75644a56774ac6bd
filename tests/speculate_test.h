/* What suites of speculation share: texts that are made with and without proposals, and proposers
 * that know them.
 */
#pragma once

#include "engine_test.h"

#include "base/hash.h"
#include "engine/engine.h"

enum { TEXTS = 6, MOST = 60, PROMPT = 12, LONGEST = 1024 };

/* ---- texts --------------------------------------------------------------------------------- */

/* A text that is being made, with the logits of each of its tokens. */
typedef struct made {
    qp_session *session;
    qp_sampler *sampler;
    int32_t tokens[LONGEST];
    size_t count, prompt, proposed, accepted, passes;
    float *logits; /* [MOST][vocab_size]; NULL: they are not asked for */
    size_t vocab_size;
} made;

static inline qp_status take(void *context, int32_t token)
{
    made *m = context;
    m->tokens[m->count++] = token;
    return m->count < m->prompt + MOST ? QP_OK : QP_CANCELLED;
}

static inline qp_status take_row(void *context, size_t token, const float *logits)
{
    made *m = context;
    const size_t row = m->count - m->prompt;
    (void)token;
    memcpy(m->logits + row * m->vocab_size, logits, m->vocab_size * sizeof *logits);
    return QP_OK;
}

/* Everything that a request can do to logits, in turn; also the likeliest tokens. */
static inline void open_text_of(qp_engine *engine, int i, size_t prompt, bool logits, made *m)
{
    qp_sampling s = {.size = sizeof s};
    const qp_logit_bias bias = {17 + i, 3};
    qp_error error;
    *m = (made){.session = open_session(engine),
                .prompt = prompt,
                .vocab_size = (size_t)qp_engine_get_info(engine)->vocab_size};
    for (size_t t = 0; t < m->prompt; t++)
        m->tokens[m->count++] = (int32_t)(t % 4 * 11 + (size_t)i);
    assert_int_equal(qp_sampling_defaults(engine, &s, NULL), QP_OK);
    s.n_stop_tokens = 0;
    assert_ok(qp_sampling_set(&s, QP_TEMPERATURE, i < 2 ? 0 : 0.3 * i, QP_FROM_REQUEST, &error));
    assert_ok(qp_sampling_set(&s, QP_SEED, 70 + i, QP_FROM_REQUEST, &error));
    if (i % 2) assert_ok(qp_sampling_set(&s, QP_REPETITION_PENALTY, 1.1, QP_FROM_REQUEST, &error));
    if (i == 3) assert_ok(qp_sampling_set(&s, QP_FREQUENCY_PENALTY, 0.5, QP_FROM_REQUEST, &error));
    if (i == 3) assert_ok(qp_sampling_set(&s, QP_PRESENCE_PENALTY, 0.2, QP_FROM_REQUEST, &error));
    if (i == 4) assert_ok(qp_sampling_set(&s, QP_TOP_K, 7, QP_FROM_REQUEST, &error));
    if (i == 5) s.logit_bias = &bias, s.n_logit_bias = 1;
    assert_ok(qp_sampler_open(engine, &s, &m->sampler, &error));
    if (logits) m->logits = calloc(MOST * m->vocab_size, sizeof *m->logits);
}

static inline void open_text(qp_engine *engine, int i, bool logits, made *m)
{
    open_text_of(engine, i, (size_t)(PROMPT - i), logits, m);
}

static inline void close_text(made *m)
{
    qp_session_close(m->session);
    qp_sampler_close(m->sampler);
    free(m->logits);
    m->logits = NULL;
}

/* Proposals pay as if a row more cost nothing. */
static inline void make_rows_free(qp_engine *e)
{
    speculation *s = &e->speculation;
    if (!s->proposer) return;
    for (int rows = 1; rows <= SPECULATE_ROWS; rows++)
        s->row_ns[rows] = 1e9;
    for (int64_t i = 0; i < e->max_sessions; i++)
        s->slots[i].lost_ns = 0;
}

static inline qp_sequence call_of(made *m)
{
    return (qp_sequence){.size = sizeof(qp_sequence),
                         .session = m->session,
                         .tokens = m->tokens + m->session->count,
                         .count = m->count - m->session->count,
                         .sampler = m->sampler,
                         .on_logits = m->logits ? take_row : NULL,
                         .on_token = take,
                         .context = m};
}

/* Reads a text's prompt alone: on a GPU prompts that are read side by side have other bits. */
static inline void begin_text(qp_engine *engine, made *m)
{
    qp_error error;
    qp_sequence s = call_of(m);
    assert_ok(qp_step(engine, &s, 1, &error));
    m->passes += s.passes;
}

/* Makes the texts side by side; each ends when it has MOST tokens. */
static inline void make_texts(qp_engine *engine, made *all, size_t n)
{
    for (size_t n_called = n; n_called > 0;) {
        qp_sequence calls[TEXTS];
        made *whose[TEXTS];
        qp_error error;
        n_called = 0;
        for (size_t i = 0; i < n; i++) {
            made *m = &all[i];
            if (m->count == m->prompt + MOST) continue;
            whose[n_called] = m;
            calls[n_called++] = call_of(m);
        }
        make_rows_free(engine);
        assert_ok(qp_step(engine, calls, n_called, &error));
        for (size_t i = 0; i < n_called; i++) {
            whose[i]->proposed += calls[i].proposed;
            whose[i]->accepted += calls[i].accepted;
            whose[i]->passes += calls[i].passes;
            assert_int_equal(whose[i]->session->count + 1, whose[i]->count);
        }
    }
}

/* ---- proposers ----------------------------------------------------------------------------- */

/* Proposes what the texts are known to become, or anything else. */
typedef struct known {
    proposer proposer;
    const made *texts; /* NULL: it proposes at random */
    bool varies;       /* it proposes 1 to 7 tokens, by turns */
    uint64_t drawn;
} known;

static inline qp_status propose_known(proposer *self, const speculated_sequence *all, size_t n,
                                      int most, qp_error *why)
{
    known *k = (known *)self;
    (void)why;
    for (size_t i = 0; i < n; i++) {
        speculated *p = all[i].slot;
        const made *text = k->texts ? &k->texts[all[i].of->session->slot] : NULL;
        memset(p->grades, SPECULATE_GRADES - 2, sizeof p->grades);
        const int wanted = k->varies ? 1 + (int)(k->drawn++ % 7) : most;
        for (p->n_found = 0; p->n_found < wanted && p->n_found < all[i].most; p->n_found++) {
            const size_t at = p->position + (size_t)p->n_found;
            if (text && at == text->count) break;
            p->tokens[p->n_found] =
                text ? text->tokens[at] : (int32_t)(hash_random(5, k->drawn++, 0) % 200);
        }
    }
    return QP_OK;
}

/* ---- the same texts ------------------------------------------------------------------------ */

/* Whether all proposals were accepted; the text may end with one. */
static inline bool was_right(const made *m)
{
    return m->accepted + 1 >= m->proposed;
}

static inline void check_same(const made *a, const made *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, a->count * sizeof *a->tokens);
    if (a->logits && b->logits)
        assert_memory_equal(a->logits, b->logits, MOST * a->vocab_size * sizeof *a->logits);
}

/* Makes all texts with a proposer, first side by side, then one after the other, and compares them
 * with those without. Returns how many proposals were accepted. */
static inline size_t compare(qp_engine *engine, const made *expected, made *all)
{
    size_t accepted = 0;
    for (int i = 0; i < TEXTS; i++) {
        open_text(engine, i, expected[i].logits, &all[i]);
        begin_text(engine, &all[i]);
    }
    make_texts(engine, all, TEXTS);
    for (int i = 0; i < TEXTS; i++) {
        check_same(&all[i], &expected[i]);
        accepted += all[i].accepted;
        close_text(&all[i]);
        open_text(engine, i, expected[i].logits, &all[i]);
    }
    for (int i = 0; i < TEXTS; i++) {
        make_texts(engine, &all[i], 1);
        check_same(&all[i], &expected[i]);
        accepted += all[i].accepted;
    }
    for (int i = 0; i < TEXTS; i++)
        close_text(&all[i]);
    assert_int_equal(page_pool_available(&engine->pages), engine->pages.n_pages);
    return accepted;
}

/* Compares all texts with the engine's own proposals, with right ones, of which more than `right`
 * must be accepted and with which a text that is made alone takes at most `passes`, and with
 * proposals at random. Closes the expected texts. */
static inline void compare_proposers(qp_engine *engine, made *expected, size_t right, size_t passes)
{
    made all[TEXTS];
    known oracle = {.proposer = {.propose = propose_known}, .texts = expected};
    known noise = {.proposer = {.propose = propose_known, .passes = true}};
    proposer *own = engine->speculation.proposer;
    assert_true(compare(engine, expected, all) > 0);
    engine->speculation.proposer = &oracle.proposer;
    assert_true(compare(engine, expected, all) > right);
    for (int i = 0; i < TEXTS; i++)
        assert_true(was_right(&all[i]) && all[i].passes <= passes);
    engine->speculation.proposer = &noise.proposer;
    assert_true(compare(engine, expected, all) < TEXTS * MOST / 10);
    for (int i = 0; i < TEXTS; i++) {
        assert_true(all[i].proposed > 0);
        close_text(&expected[i]);
    }
    engine->speculation.proposer = own;
}
