/* Speculation: with proposals of any kind, texts and logits are the same, to the bit, as without.
 *
 * On machines of the CPU, where a pass of several rows computes what several passes of one row do.
 * GPUs are in test_cuda_speculate.c. Random sequences that join, leave and are cancelled are in
 * test_step.c.
 */
#include "speculate_test.h"

#include "engine/lookup.h"

static const char text_model[] = "golden/models/llama-text.gguf";
static qp_error error;

/* ---- prompt lookup ------------------------------------------------------------------------- */

/* Proposals after the first n tokens of the text and `last`. */
static lookup_found find(const int32_t *text, size_t n, int32_t last, int most)
{
    return lookup_propose((lookup_text){text, n, last}, most);
}

static void lookup_finds_the_longest_agreement(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, 4, 9, 2, 3, 5, 6, 8, 1, 2};
    lookup_found found = find(text, 12, 3, 3);
    assert_int_equal(found.agreed, 3); /* 1 2 3 */
    assert_memory_equal(found.tokens, ((int32_t[]){4, 9, 2}), 3 * sizeof *found.tokens);
    found = find(text + 1, 11, 3, 3);
    assert_int_equal(found.agreed, 2); /* the later 2 3 */
    assert_memory_equal(found.tokens, ((int32_t[]){5, 6, 8}), 3 * sizeof *found.tokens);
    assert_int_equal(find(text, 12, 7, 3).agreed, 0);
    assert_int_equal(find(text, 0, 7, 3).agreed, 0);
}

static void lookup_continues_repetitions(void **state)
{
    (void)state;
    int32_t text[100];
    const int32_t pair[] = {7, 8, 7};
    lookup_found found = find(pair, 3, 8, 6);
    assert_int_equal(found.agreed, 2);
    assert_memory_equal(found.tokens, ((int32_t[]){7, 8, 7, 8, 7, 8}), 6 * sizeof *found.tokens);
    assert_true(found.foreseen[5]);
    for (int i = 0; i < 100; i++)
        text[i] = i % 40;
    found = find(text, 100, 20, 6);
    assert_int_equal(found.agreed, LOOKUP_LONGEST);
    assert_int_equal(found.tokens[0], 21);
}

/* Records "1 2 3 VALUE 4 5": the values are not foreseen, what is between them is, and nothing of
 * the first record is. */
static void lookup_tells_values_from_what_is_between_them(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, 71, 4, 5, 1, 2, 3, 72, 4, 5};
    const lookup_found found = find(text, 12, 1, 5);
    assert_int_equal(found.agreed, 3); /* 4 5 1 */
    assert_memory_equal(found.tokens, ((int32_t[]){2, 3, 72, 4, 5}), 5 * sizeof *found.tokens);
    assert_memory_equal(found.foreseen, ((bool[]){true, true, false, false, true}), 5);
    const lookup_found first = find(text, 6, 1, 4);
    assert_memory_equal(first.tokens, ((int32_t[]){2, 3, 71, 4}), 4 * sizeof *first.tokens);
    for (int i = 0; i < 4; i++)
        assert_false(first.foreseen[i]);
}

/* As far back as LOOKUP_BACK tokens; at the text's first token; past its last. */
static void lookup_foresees_from_a_limited_text(void **state)
{
    (void)state;
    int32_t text[2 * LOOKUP_BACK];
    for (int i = 0; i < 2 * LOOKUP_BACK; i++)
        text[i] = 100 + i;
    text[LOOKUP_BACK + 1] = 1, text[LOOKUP_BACK + 2] = 2;
    text[1] = 1, text[2] = 2;
    assert_true(find(text, LOOKUP_BACK + 4, 1, 1).foreseen[0]);
    text[0] = 1, text[1] = 2, text[2] = 102; /* a token too far */
    assert_false(find(text, LOOKUP_BACK + 4, 1, 1).foreseen[0]);
    assert_false(find((int32_t[]){5}, 1, 5, 3).foreseen[0]);
    assert_true(find((int32_t[]){5}, 1, 5, 3).foreseen[1]);
}

/* ---- the same texts ------------------------------------------------------------------------ */

static qp_engine *open_model(const char *exec, const char *speculate)
{
    return open_engine((qp_engine_options){.model = text_model,
                                           .exec = exec,
                                           .threads = 2,
                                           .context = 100,
                                           .page_size = 4,
                                           .max_sessions = TEXTS,
                                           .max_outputs = 10,
                                           .speculate = speculate});
}

static void check_machine(const char *exec, bool logits)
{
    made expected[TEXTS];
    qp_engine *plain = open_model(exec, NULL), *engine = open_model(exec, "lookup");
    for (int i = 0; i < TEXTS; i++)
        open_text(plain, i, logits, &expected[i]);
    make_texts(plain, expected, TEXTS);
    /* Alone: four passes with 15 proposals, the prompt's, and one more. */
    compare_proposers(engine, expected, TEXTS * MOST, 6);
    qp_engine_close(engine);
    qp_engine_close(plain);
}

static void texts_are_the_same(void **state)
{
    (void)state;
    check_machine("threads", true);
    check_machine("operators", false);
}

/* ---- when it pays -------------------------------------------------------------------------- */

/* Makes a text while a pass takes `ns`, by its rows. */
static void make_with_times(qp_engine *engine, double (*ns)(int rows), made *m)
{
    open_text(engine, 2, false, m);
    while (m->count < m->prompt + MOST) {
        qp_sequence s = {.size = sizeof s,
                         .session = m->session,
                         .tokens = m->tokens + m->session->count,
                         .count = m->count - m->session->count,
                         .sampler = m->sampler,
                         .on_token = take,
                         .context = m};
        for (int rows = 1; rows <= SPECULATE_ROWS; rows++)
            engine->speculation.row_ns[rows] = ns(rows);
        assert_ok(qp_step(engine, &s, 1, &error));
        m->proposed += s.proposed;
        m->accepted += s.accepted;
    }
    close_text(m);
}

static double each_row_costs(int rows)
{
    return 1e12 * rows;
}

static double eight_rows_cost_one(int rows)
{
    return rows <= 8 ? 1e12 : 1e14;
}

static void only_what_pays_is_verified(void **state)
{
    (void)state;
    made m, text;
    qp_engine *engine = open_model("threads", "lookup");
    known oracle = {.proposer = {.propose = propose_known}, .texts = &text};
    known noise = {.proposer = {.propose = propose_known}};
    open_text(engine, 2, false, &text);
    make_texts(engine, &text, 1);
    close_text(&text);
    engine->speculation.proposer = &oracle.proposer;
    make_with_times(engine, each_row_costs, &m);
    assert_int_equal(m.proposed, 0);
    make_with_times(engine, eight_rows_cost_one, &m);
    assert_true(was_right(&m));
    assert_int_equal(m.accepted, MOST - 1 - (MOST - 1 + 7) / 8);
    engine->speculation.proposer = &noise.proposer;
    make_with_times(engine, each_row_costs, &m);
    assert_int_equal(m.proposed, 0);
    qp_engine_close(engine);
}

/* A sequence that has lost time waits until that is a small share of its time. */
static void losses_are_limited(void **state)
{
    (void)state;
    made text, m;
    qp_engine *engine = open_model("threads", "lookup");
    known oracle = {.proposer = {.propose = propose_known}, .texts = &text};
    open_text(engine, 0, false, &text);
    make_texts(engine, &text, 1);
    close_text(&text);
    engine->speculation.proposer = &oracle.proposer;
    open_text(engine, 0, false, &m);
    while (m.count < m.prompt + MOST) {
        qp_sequence s = {.size = sizeof s,
                         .session = m.session,
                         .tokens = m.tokens + m.session->count,
                         .count = m.count - m.session->count,
                         .sampler = m.sampler,
                         .max_tokens = 3,
                         .on_token = take,
                         .context = &m};
        make_rows_free(engine);
        speculated *p = &engine->speculation.slots[m.session->slot];
        p->session = m.session->id;
        p->sampler = m.sampler->id;
        p->lost_ns = m.count < m.prompt + 20 ? 1e15 : 0;
        assert_ok(qp_step(engine, &s, 1, &error));
        assert_true(m.count <= m.prompt + 20 || s.proposed == 2 || m.count + 2 > m.prompt + MOST);
        assert_true(m.count > m.prompt + 20 || s.proposed == 0);
    }
    close_text(&m);
    qp_engine_close(engine);
}

/* ---- pages, refusals ----------------------------------------------------------------------- */

static void proposals_do_without_pages(void **state)
{
    (void)state;
    made expected, m;
    qp_engine_options options = {.model = text_model,
                                 .context = PROMPT + MOST + 1,
                                 .page_size = 1,
                                 .pages = PROMPT + MOST + 1,
                                 .max_sessions = 2};
    qp_engine *plain = open_engine(options);
    options.speculate = "lookup";
    qp_engine *engine = open_engine(options);
    open_text(plain, 0, false, &expected);
    make_texts(plain, &expected, 1);
    known oracle = {.proposer = {.propose = propose_known}, .texts = &expected};
    engine->speculation.proposer = &oracle.proposer;
    open_text(engine, 0, false, &m);
    qp_session *other = open_session(engine); /* it leaves one page for each further token */
    qp_sequence some = {
        .size = sizeof some, .session = other, .tokens = expected.tokens, .count = 1};
    assert_ok(qp_step(engine, &some, 1, &error));
    make_texts(engine, &m, 1);
    check_same(&m, &expected);
    assert_true(m.accepted > 0 && was_right(&m));
    qp_session_close(other);
    close_text(&m);
    close_text(&expected);
    qp_engine_close(engine);
    qp_engine_close(plain);
}

static void what_cannot_speculate_is_refused(void **state)
{
    (void)state;
    qp_engine *engine = NULL;
    qp_engine_options options = {
        .size = sizeof options, .model = "golden/models/llama-dynamic", .speculate = "lookup"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "RoPE angles"));
    options.model = text_model;
    options.speculate = "often";
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "often"));
    options.speculate = "off";
    assert_ok(qp_engine_open(&options, &engine, &error));
    assert_null(engine->speculation.proposer);
    qp_engine_close(engine);
}

/* ---- a draft model ------------------------------------------------------------------------- */

/* The draft is the model itself, so that it proposes what is chosen; or another one, with another
 * cache or other weights, whose proposals differ at times. */
static void a_draft_gives_the_same_texts(void **state)
{
    (void)state;
    made expected[TEXTS], all[TEXTS];
    const struct {
        const char *model, *draft;
        size_t least; /* proposals accepted */
    } pairs[] = {{text_model, text_model, TEXTS * MOST},
                 {"synthetic:tiny:F32", "synthetic:tiny:Q4_0", 1},
                 {"synthetic:tiny:F32:1", "synthetic:tiny:F32:2", 0}};
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        qp_engine_options options = {.model = pairs[k].model,
                                     .threads = 2,
                                     .context = 100,
                                     .page_size = 4,
                                     .max_sessions = TEXTS,
                                     .max_outputs = 10};
        qp_engine *plain = open_engine(options);
        options.draft = pairs[k].draft;
        qp_engine *engine = open_engine(options);
        for (int i = 0; i < TEXTS; i++)
            open_text(plain, i, false, &expected[i]);
        make_texts(plain, expected, TEXTS);
        const size_t accepted = compare(engine, expected, all);
        assert_true(accepted >= pairs[k].least);
        for (int i = 0; i < TEXTS; i++) {
            if (pairs[k].least > 1) /* the last ones are past the end */
                assert_true(all[i].accepted + SPECULATE_MOST >= all[i].proposed);
            close_text(&expected[i]);
        }
        qp_engine_close(engine);
        qp_engine_close(plain);
    }
}

/* The draft's session of a text that has ended holds pages that the next one needs. */
static void a_draft_gives_pages_back(void **state)
{
    (void)state;
    made expected, m[2];
    qp_engine_options options = {.model = text_model,
                                 .context = PROMPT + MOST + 1,
                                 .page_size = 1,
                                 .pages = PROMPT + MOST + 17,
                                 .max_sessions = 2};
    qp_engine *plain = open_engine(options);
    options.draft = text_model;
    qp_engine *engine = open_engine(options);
    open_text(plain, 0, false, &expected);
    make_texts(plain, &expected, 1);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 2; i++)
            open_text(engine, 0, false, &m[i]);
        make_texts(engine, &m[turn], 1);
        check_same(&m[turn], &expected);
        assert_true(m[turn].accepted > MOST / 2);
        for (int i = 0; i < 2; i++)
            close_text(&m[i]);
    }
    close_text(&expected);
    qp_engine_close(engine);
    qp_engine_close(plain);
}

static void many_sequences_do_without(void **state)
{
    (void)state;
    enum { N = SPECULATE_ROWS + 30, COUNT = 4 };
    static int32_t tokens[2][COUNT + 1][N];
    for (int on = 0; on < 2; on++) {
        qp_session *sessions[N];
        qp_engine *engine = open_engine((qp_engine_options){.model = "synthetic:tiny",
                                                            .context = 8,
                                                            .max_sessions = N,
                                                            .speculate = on ? "lookup" : "off"});
        for (int i = 0; i < N; i++) {
            sessions[i] = open_session(engine);
            tokens[on][0][i] = i;
        }
        assert_ok(qp_decode(engine, sessions, N, COUNT, tokens[on][0], NULL, &error));
        for (int i = 0; i < N; i++)
            qp_session_close(sessions[i]);
        qp_engine_close(engine);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
}

static void a_draft_has_the_same_vocabulary(void **state)
{
    (void)state;
    qp_engine *engine = NULL;
    qp_engine_options options = {.size = sizeof options,
                                 .model = text_model,
                                 .threads = 1,
                                 .draft = "golden/models/qwen2.gguf"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "vocabulary"));
    options.draft = "missing.gguf";
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_IO);
    assert_non_null(strstr(error.message, "draft model: missing.gguf"));
    options.speculate = "lookup";
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "leave one out"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_finds_the_longest_agreement),
        cmocka_unit_test(lookup_continues_repetitions),
        cmocka_unit_test(lookup_tells_values_from_what_is_between_them),
        cmocka_unit_test(lookup_foresees_from_a_limited_text),
        cmocka_unit_test(texts_are_the_same),
        cmocka_unit_test(only_what_pays_is_verified),
        cmocka_unit_test(losses_are_limited),
        cmocka_unit_test(proposals_do_without_pages),
        cmocka_unit_test(what_cannot_speculate_is_refused),
        cmocka_unit_test(a_draft_gives_the_same_texts),
        cmocka_unit_test(a_draft_gives_pages_back),
        cmocka_unit_test(many_sequences_do_without),
        cmocka_unit_test(a_draft_has_the_same_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
