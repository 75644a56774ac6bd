/* Forked sessions: both continue with the same bits as sessions that read everything themselves,
 * whichever writes first. Pages are shared and returned, and answers with one prompt read it once.
 */
#include "engine_test.h"

#include "engine/engine.h"

enum { PROMPT = 37, MORE = 13, ROUNDS = 40, SESSIONS = 5, CONTEXT = 96 };

static const char text_model[] = "golden/models/llama-text.gguf";
static qp_error error;

static int32_t id_of(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return (int32_t)((*random >> 8) % 250);
}

/* The last logits after `count` further tokens. */
static void read_tokens(qp_session *session, const int32_t *ids, size_t count, float *last)
{
    float *rows = eval_rows(session->engine, session, ids, count);
    const size_t vocab = (size_t)qp_engine_get_info(session->engine)->vocab_size;
    memcpy(last, rows + (count - 1) * vocab, vocab * sizeof *last);
    free(rows);
}

/* A random history of forks, reads, truncations and closings; every session's next logits are those
 * of a session that reads the same tokens afresh. */
static void check_random_forks(qp_engine_options options)
{
    options.context = CONTEXT;
    options.max_sessions = SESSIONS + 1;
    qp_engine *engine = open_engine(options);
    const size_t vocab = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *got = calloc(2 * vocab, sizeof *got), *want = got + vocab;
    qp_session *sessions[SESSIONS] = {open_session(engine)};
    uint32_t random = 11;
    for (int round = 0; round < ROUNDS; round++) {
        const int i = id_of(&random) % SESSIONS, to = id_of(&random) % SESSIONS;
        size_t held = 0;
        int32_t ids[MORE];
        if (!sessions[i]) continue;
        const int32_t *tokens = qp_session_tokens(sessions[i], &held);
        const size_t count = 1 + (size_t)(id_of(&random) % MORE);
        if (!sessions[to]) {
            assert_ok(qp_session_fork(sessions[i], &sessions[to], &error));
            continue;
        }
        if (held + count > CONTEXT || id_of(&random) % 5 == 0) {
            qp_session_truncate(sessions[i], held / 2 + 1, NULL);
            continue;
        }
        if (to != i && id_of(&random) % 6 == 0) {
            qp_session_close(sessions[to]);
            sessions[to] = NULL;
        }
        for (size_t t = 0; t < count; t++)
            ids[t] = id_of(&random);
        read_tokens(sessions[i], ids, count, got);
        tokens = qp_session_tokens(sessions[i], &held);
        qp_session *fresh = open_session(engine);
        read_tokens(fresh, tokens, held, want);
        qp_session_close(fresh);
        assert_memory_equal(got, want, vocab * sizeof *got);
    }
    for (int i = 0; i < SESSIONS; i++)
        qp_session_close(sessions[i]);
    assert_int_equal(engine->pages.n_free, engine->pages.n_pages);
    free(got);
    qp_engine_close(engine);
}

static void forks_are_as_sessions_of_their_own(void **state)
{
    (void)state;
    check_random_forks((qp_engine_options){.model = text_model, .threads = 2});
    check_random_forks(
        (qp_engine_options){.model = text_model, .exec = "operators", .page_size = 5, .chunk = 8});
    check_random_forks((qp_engine_options){.model = "synthetic:tiny:Q8_0", .kv_type = "F32"});
}

static void pages_are_held_once(void **state)
{
    (void)state;
    qp_engine *engine = open_engine(
        (qp_engine_options){.model = text_model, .max_sessions = 3, .context = CONTEXT});
    qp_session *first = open_session(engine), *second = NULL, *third = NULL, *none = NULL;
    int32_t ids[PROMPT];
    uint32_t random = 3;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = id_of(&random);
    free(eval_rows(engine, first, ids, PROMPT));
    const int64_t before = engine->pages.n_free;
    assert_ok(qp_session_fork(first, &second, &error));
    assert_ok(qp_session_fork(second, &third, &error));
    assert_int_equal(engine->pages.n_free, before);
    assert_int_equal(qp_session_fork(first, &none, &error), QP_INVALID);
    assert_null(none);
    size_t held;
    assert_memory_equal(qp_session_tokens(third, &held), ids, sizeof ids);
    assert_int_equal(held, PROMPT);
    qp_session_close(first); /* the others keep what it read */
    assert_int_equal(engine->pages.n_free, before);
    free(eval_rows(engine, second, ids, 1));
    assert_int_equal(engine->pages.n_free, before - 1); /* a copy of the last page */
    qp_session_close(second);
    qp_session_close(third);
    assert_int_equal(engine->pages.n_free, engine->pages.n_pages);
    qp_engine_close(engine);
}

/* Where RoPE's frequencies depend on the length, a fork goes on with those of what it forked from.
 */
static void dynamic_frequencies_are_kept(void **state)
{
    (void)state;
    qp_engine *engine = open_engine((qp_engine_options){
        .model = "golden/models/llama-dynamic", .max_sessions = 2, .context = CONTEXT});
    const size_t vocab = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *logits[2] = {calloc(vocab, sizeof(float)), calloc(vocab, sizeof(float))};
    qp_session *sessions[2] = {open_session(engine)};
    int32_t ids[PROMPT];
    uint32_t random = 3;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = id_of(&random) % 32;
    free(eval_rows(engine, sessions[0], ids, PROMPT));
    assert_ok(qp_session_fork(sessions[0], &sessions[1], &error));
    for (int i = 0; i < 2; i++)
        read_tokens(sessions[i], ids, MORE, logits[i]);
    assert_memory_equal(logits[1], logits[0], vocab * sizeof(float));
    for (int i = 0; i < 2; i++) {
        qp_session_close(sessions[i]);
        free(logits[i]);
    }
    qp_engine_close(engine);
}

static qp_status count_token(void *context, int32_t token, const char *text, size_t length)
{
    (void)token, (void)text, (void)length;
    ++*(int *)context;
    return QP_OK;
}

static void one_prompt_is_read_once(void **state)
{
    (void)state;
    enum { ANSWERS = 4 };
    qp_engine *engine =
        open_engine((qp_engine_options){.model = text_model, .max_sessions = ANSWERS});
    qp_sampling sampling = {.size = sizeof sampling};
    qp_answer answers[ANSWERS];
    qp_generate_result results[ANSWERS];
    qp_generate_options options[ANSWERS];
    int counts[ANSWERS] = {0};
    const int32_t prompts[2][4] = {{1, 20, 30, 40}, {1, 20, 30, 41}};
    assert_int_equal(qp_sampling_defaults(engine, &sampling, NULL), QP_OK);
    sampling.n_stop_tokens = 0;
    for (int i = 0; i < ANSWERS; i++) {
        options[i] = (qp_generate_options){.size = sizeof(qp_generate_options),
                                           .prompt = prompts[i == 1],
                                           .n_prompt = 4,
                                           .sampling = &sampling,
                                           .max_tokens = 6,
                                           .on_token = count_token,
                                           .context = &counts[i]};
        results[i].size = sizeof results[i];
        answers[i] = (qp_answer){open_session(engine), &options[i], &results[i]};
    }
    assert_ok(qp_generate_together(answers, ANSWERS, &error));
    static const size_t shared[ANSWERS] = {0, 0, 4, 4};
    for (int i = 0; i < ANSWERS; i++) {
        assert_int_equal(results[i].shared_tokens, shared[i]);
        assert_int_equal(results[i].prompt_tokens, 4);
        assert_int_equal(results[i].prompt_passes, shared[i] ? 0 : 1);
        assert_int_equal(results[i].generated_tokens, 6);
        qp_session_close(answers[i].session);
    }
    assert_int_equal(engine->pages.n_free, engine->pages.n_pages);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_are_as_sessions_of_their_own),
        cmocka_unit_test(pages_are_held_once),
        cmocka_unit_test(dynamic_frequencies_are_kept),
        cmocka_unit_test(one_prompt_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
