/* The engine's sessions and options: what they may be, and errors that say what is wrong. */
#include "engine_test.h"

static qp_error error;

/* --- Sessions -------------------------------------------------------------------------------- */

static const char small_model[] = "golden/models/llama-tied-gqa3.gguf";

static qp_engine *open_small(int64_t context, int64_t max_sessions)
{
    return open_engine((qp_engine_options){
        .model = small_model, .context = context, .max_sessions = max_sessions, .max_outputs = 8});
}

static void truncated_sessions_continue_as_fresh_ones(void **state)
{
    (void)state;
    enum { KEEP = 21, NEW = 15 };
    qp_engine *engine = open_small(64, 2);
    int64_t vocab_size = qp_engine_get_info(engine)->vocab_size;
    int32_t first[40], second[KEEP + NEW];
    make_ids(first, 40, vocab_size, 3);
    make_ids(second, KEEP + NEW, vocab_size, 4);
    memcpy(second, first, KEEP * sizeof *first);
    qp_session *session = open_session(engine), *other = open_session(engine);
    free(eval_rows(engine, session, first, 40));
    qp_session_truncate(session, 99, NULL); /* more than there is: nothing happens */
    size_t count;
    assert_memory_equal(qp_session_tokens(session, &count), first, sizeof first);
    assert_int_equal(count, 40);
    qp_session_truncate(session, KEEP, NULL);
    free(eval_rows(engine, other, first, 30)); /* takes the pages that were given back */
    float *got = eval_rows(engine, session, second + KEEP, NEW);
    assert_memory_equal(qp_session_tokens(session, &count), second, sizeof second);
    assert_int_equal(count, KEEP + NEW);
    qp_session_close(other);
    float *want = eval_fresh(engine, second, KEEP + NEW);
    assert_same_bits("truncated", got, want + KEEP * vocab_size, NEW * (size_t)vocab_size);
    qp_session_close(session);
    free(got);
    free(want);
    qp_engine_close(engine);
}

/* Whether the limit is the file's, and what raises it. */
static void a_full_context_says_where_its_length_is_from(void **state)
{
    (void)state;
    enum { TRAINED = 512 };
    qp_engine *engine =
        open_engine((qp_engine_options){.model = "golden/models/llama-tied-gqa3.gguf"});
    int32_t ids[TRAINED + 1];
    make_ids(ids, TRAINED + 1, qp_engine_get_info(engine)->vocab_size, 5);
    qp_session *session = open_session(engine);
    qp_input input = {.session = session, .tokens = ids, .count = TRAINED + 1};
    assert_int_equal(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "room for 512 in all (the context length that the "
                                          "model's file gives; -c sets another)"));
    qp_session_close(session);
    qp_engine_close(engine);
}

static void a_full_context_is_refused_with_both_numbers(void **state)
{
    (void)state;
    qp_engine *engine = open_small(20, 1);
    int32_t ids[21];
    make_ids(ids, 21, qp_engine_get_info(engine)->vocab_size, 5);
    qp_session *session = open_session(engine);
    qp_input input = {.session = session, .tokens = ids, .count = 21};
    assert_int_equal(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "21 more"));
    assert_non_null(strstr(error.message, "room for 20 in all (-c sets another length)"));
    input.count = 20; /* to the last position */
    assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    input.count = 1;
    assert_int_equal(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "holds 20 tokens, 1 more"));
    input.count = SIZE_MAX;
    assert_int_equal(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error), QP_INVALID);
    qp_session_truncate(session, 19, NULL);
    input.count = 1;
    assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
    qp_session_close(session);
    qp_engine_close(engine);
}

static void tokens_outside_the_vocabulary_change_nothing(void **state)
{
    (void)state;
    qp_engine *engine = open_small(64, 2);
    int64_t vocab_size = qp_engine_get_info(engine)->vocab_size;
    qp_session *good = open_session(engine), *bad = open_session(engine);
    const int32_t ids[] = {1, 2, 3}, wrong[][3] = {{1, (int32_t)vocab_size, 3}, {1, -1, 3}};
    for (int i = 0; i < 2; i++) {
        const qp_input inputs[] = {{good, ids, 3, false}, {bad, wrong[i], 3, false}};
        assert_int_equal(qp_eval(engine, inputs, 2, NULL, NULL, NULL, &error), QP_INVALID);
        assert_non_null(strstr(error.message, i ? "token 1 is -1" : "token 1 is 71"));
        assert_non_null(strstr(error.message, "0 to 70"));
        size_t count;
        qp_session_tokens(good, &count);
        assert_int_equal(count, 0);
    }
    qp_session_close(good);
    qp_session_close(bad);
    qp_engine_close(engine);
}

static void sessions_are_counted(void **state)
{
    (void)state;
    qp_engine *engine = open_small(32, 2);
    qp_session *a = open_session(engine), *b = open_session(engine), *c = NULL;
    assert_int_equal(qp_session_open(engine, &c, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "2 sessions"));
    assert_null(c);
    qp_session_close(b);
    b = open_session(engine);
    /* Both to their last position: the pages suffice for every session's whole context. */
    int32_t ids[32];
    make_ids(ids, 32, qp_engine_get_info(engine)->vocab_size, 6);
    free(eval_rows(engine, a, ids, 32));
    free(eval_rows(engine, b, ids, 32));
    qp_session_close(a);
    qp_session_close(b);
    qp_session_close(NULL);
    qp_engine_close(engine);
    qp_engine_close(NULL);
}

/* The likeliest token after each of a session's tokens. */
static void follow_likeliest(qp_engine *engine, qp_session *session, int32_t first, size_t count,
                             int32_t *tokens)
{
    int64_t vocab_size = qp_engine_get_info(engine)->vocab_size;
    tokens[0] = first;
    for (size_t i = 0; i < count; i++) {
        float *row = eval_rows(engine, session, tokens + i, 1);
        tokens[i + 1] = 0;
        for (int32_t id = 1; id < vocab_size; id++)
            if (row[id] > row[tokens[i + 1]]) tokens[i + 1] = id;
        free(row);
    }
}

/* Sessions of different lengths, side by side, get the tokens that each gets alone. */
static void sessions_decode_side_by_side(void **state)
{
    (void)state;
    enum { SESSIONS = 3, COUNT = 19 };
    qp_engine *engine =
        open_engine((qp_engine_options){.model = small_model, .max_sessions = SESSIONS});
    qp_session *sessions[SESSIONS];
    int32_t prompt[16], tokens[(COUNT + 1) * SESSIONS], expected[SESSIONS][COUNT + 1];
    make_ids(prompt, 16, qp_engine_get_info(engine)->vocab_size, 3);
    for (size_t i = 0; i < SESSIONS; i++) {
        sessions[i] = open_session(engine);
        qp_input input = {.session = sessions[i], .tokens = prompt, .count = 5 * i};
        assert_ok(qp_eval(engine, &input, 1, NULL, NULL, NULL, &error));
        follow_likeliest(engine, sessions[i], prompt[i], COUNT, expected[i]);
        qp_session_truncate(sessions[i], 5 * i, NULL);
        tokens[i] = prompt[i];
    }
    assert_ok(qp_decode(engine, sessions, SESSIONS, COUNT, tokens, NULL, &error));
    for (size_t i = 0; i < SESSIONS; i++) {
        size_t held;
        const int32_t *ids = qp_session_tokens(sessions[i], &held);
        for (size_t pass = 0; pass <= COUNT; pass++)
            assert_int_equal(tokens[pass * SESSIONS + i], expected[i][pass]);
        assert_int_equal(held, 5 * i + COUNT);
        assert_memory_equal(ids + 5 * i, expected[i], COUNT * sizeof *ids);
        qp_session_close(sessions[i]);
    }
    qp_engine_close(engine);
}

static void decoding_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    qp_engine *engine = open_engine((qp_engine_options){
        .model = small_model, .max_sessions = 2, .max_outputs = 1, .context = 32});
    qp_session *sessions[] = {open_session(engine), open_session(engine)};
    int32_t tokens[34 * 2] = {1, 2};
    const volatile int cancelled = 1;
    assert_int_equal(qp_decode(engine, sessions, 2, 1, tokens, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "2 sequences"));
    assert_int_equal(qp_decode(engine, sessions, 1, 33, tokens, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "room for 32"));
    assert_int_equal(qp_decode(engine, sessions, 1, 1, tokens, &cancelled, &error), QP_CANCELLED);
    tokens[0] = -1;
    assert_int_equal(qp_decode(engine, sessions, 1, 1, tokens, NULL, &error), QP_INVALID);
    tokens[0] = 1;
    assert_ok(qp_decode(engine, sessions, 0, 5, tokens, NULL, &error));
    assert_ok(qp_decode(engine, sessions, 1, 32, tokens, NULL, &error));
    qp_engine *wider = open_engine((qp_engine_options){.model = small_model, .max_sessions = 2});
    qp_session *own = open_session(wider), *twice[] = {own, own};
    assert_int_equal(qp_decode(wider, twice, 2, 1, tokens, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "twice"));
    assert_int_equal(qp_decode(wider, sessions, 2, 1, tokens, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "another engine"));
    qp_session_close(own);
    qp_engine_close(wider);
    qp_session_close(sessions[0]);
    qp_session_close(sessions[1]);
    qp_engine_close(engine);
}

/* Inputs without tokens are legal, also where no row of logits is left in the batch. */
static void empty_inputs_do_nothing(void **state)
{
    (void)state;
    qp_engine *engine =
        open_engine((qp_engine_options){.model = small_model, .max_sessions = 3, .max_outputs = 1});
    qp_session *sessions[3];
    for (int i = 0; i < 3; i++)
        sessions[i] = open_session(engine);
    const int32_t ids[] = {1, 2, 3};
    const qp_input inputs[] = {
        {sessions[0], ids, 3, true}, {sessions[1], NULL, 0, false}, {sessions[2], ids, 2, false}};
    assert_ok(qp_eval(engine, inputs, 3, NULL, NULL, NULL, &error));
    assert_ok(qp_eval(engine, inputs + 1, 1, NULL, NULL, NULL, &error));
    assert_ok(qp_eval(engine, NULL, 0, NULL, NULL, NULL, &error));
    static const size_t expected[] = {3, 0, 2};
    for (int i = 0; i < 3; i++) {
        size_t count;
        qp_session_tokens(sessions[i], &count);
        assert_int_equal(count, expected[i]);
        qp_session_close(sessions[i]);
    }
    qp_engine_close(engine);
}

/* A session twice in one call would need its own tokens before they are there. */
static void a_session_twice_in_a_call_is_refused(void **state)
{
    (void)state;
    qp_engine *engine = open_small(64, 2), *other = open_small(64, 1);
    qp_session *a = open_session(engine), *b = open_session(engine), *c = open_session(other);
    const int32_t ids[] = {1, 2, 3};
    const qp_input twice[] = {{a, ids, 3, false}, {b, ids, 3, false}, {a, ids, 2, false}};
    assert_int_equal(qp_eval(engine, twice, 3, NULL, NULL, NULL, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "sequence 2"));
    const qp_input foreign = {c, ids, 3, false};
    assert_int_equal(qp_eval(engine, &foreign, 1, NULL, NULL, NULL, &error), QP_INVALID);
    assert_ok(qp_eval(engine, twice, 2, NULL, NULL, NULL, &error));
    assert_ok(qp_eval(engine, twice + 1, 2, NULL, NULL, NULL, &error));
    qp_session_close(a);
    qp_session_close(b);
    qp_session_close(c);
    qp_engine_close(engine);
    qp_engine_close(other);
}

typedef struct canceller {
    int flag;
    size_t rows;
} canceller;

static qp_status cancel_after_six(void *context, size_t input, size_t token, const float *logits)
{
    (void)input, (void)token, (void)logits;
    canceller *c = context;
    if (++c->rows == 6) c->flag = 1;
    return QP_OK;
}

/* What was done before a cancellation stays, and the session goes on from there. */
static void cancellation_keeps_whole_chunks(void **state)
{
    (void)state;
    qp_engine *engine =
        open_engine((qp_engine_options){.model = small_model, .chunk = 4, .max_outputs = 4});
    int64_t vocab_size = qp_engine_get_info(engine)->vocab_size;
    int32_t ids[40];
    make_ids(ids, 40, vocab_size, 9);
    float *want = eval_fresh(engine, ids, 40);
    qp_session *session = open_session(engine);
    canceller c = {0};
    const qp_input input = {session, ids, 40, true};
    assert_int_equal(qp_eval(engine, &input, 1, cancel_after_six, &c, &c.flag, &error),
                     QP_CANCELLED);
    size_t count;
    qp_session_tokens(session, &count);
    assert_int_equal(count, 8);
    float *got = eval_rows(engine, session, ids + 8, 32);
    assert_same_bits("cancelled", got, want + 8 * vocab_size, 32 * (size_t)vocab_size);
    free(got);
    free(want);
    qp_session_close(session);
    qp_engine_close(engine);
}

static qp_status refuse(void *context, size_t input, size_t token, const float *logits)
{
    (void)context, (void)input, (void)token, (void)logits;
    return QP_IO;
}

static void a_callback_ends_the_evaluation(void **state)
{
    (void)state;
    qp_engine *engine = open_small(64, 1);
    qp_session *session = open_session(engine);
    const int32_t ids[] = {1, 2, 3};
    const qp_input input = {session, ids, 3, true};
    assert_int_equal(qp_eval(engine, &input, 1, refuse, NULL, NULL, &error), QP_IO);
    qp_session_close(session);
    qp_engine_close(engine);
}

/* --- Options --------------------------------------------------------------------------------- */

static void wrong_options_are_named(void **state)
{
    (void)state;
    static const struct {
        qp_engine_options options;
        qp_status status;
        const char *message;
    } cases[] = {
        {{.model = NULL}, QP_INVALID, "no model"},
        {{.model = "absent.gguf"}, QP_IO, "absent.gguf"},
        {{.model = "golden"}, QP_IO, "config.json"},
        {{.model = "llama3.2:1b"}, QP_IO, "`quipu pull llama3.2:1b` fetches it"},
        {{.model = "hf:owner/model"}, QP_IO, "`quipu pull hf:owner/model` fetches it"},
        {{.model = "golden/models/internlm2/model.safetensors"}, QP_INVALID, "directory"},
        {{.model = "synthetic:huge"}, QP_INVALID, "huge"},
        {{.model = small_model, .exec = "fast"}, QP_INVALID, "\"fast\""},
        {{.model = small_model, .cpu_mask = "avx3"}, QP_INVALID, "avx3"},
        {{.model = small_model, .activations = "4"}, QP_INVALID, "found \"4\""},
        {{.model = small_model, .bf16_copies = "yes"}, QP_INVALID, "found \"yes\""},
        {{.model = small_model, .kv_type = "Q8_0"}, QP_INVALID, "Q8_0"},
        {{.model = small_model, .kv_type = "F7"}, QP_INVALID, "F7"},
        {{.model = small_model, .context = -1}, QP_INVALID, "-1"},
        {{.model = small_model, .context = INT64_MAX}, QP_INVALID, "context"},
        {{.model = small_model, .chunk = -5}, QP_INVALID, "-5"},
        {{.model = small_model, .max_sessions = 1 << 20}, QP_INVALID, "sequences"},
        {{.model = small_model, .max_outputs = -1}, QP_INVALID, "rows of logits"},
        {{.model = small_model, .page_size = -16}, QP_INVALID, "page size"},
        {{.model = small_model, .threads = -1}, QP_INVALID, "threads"},
        {{.model = small_model, .context = 1 << 26, .max_sessions = 1 << 16},
         QP_NO_MEMORY,
         "GiB are available"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_engine *engine = NULL;
        qp_engine_options options = cases[i].options;
        options.size = sizeof options;
        if (!options.threads) options.threads = 1;
        qp_status status = qp_engine_open(&options, &engine, &error);
        if (status != cases[i].status || !strstr(error.message, cases[i].message))
            fail_msg("case %zu: status %d, %s", i, status, status ? error.message : "no error");
        assert_null(engine);
        assert_int_equal(qp_engine_open(&options, &engine, NULL), status);
    }
}

static void log_warning(void *context, qp_log_level level, const char *message)
{
    assert_int_equal(level, QP_LOG_WARNING);
    snprintf(context, QP_ERROR_SIZE, "%s", message);
}

static void a_context_past_the_model_s_is_warned_of(void **state)
{
    (void)state;
    char message[QP_ERROR_SIZE] = "";
    qp_engine_options options = {.size = sizeof options,
                                 .model = small_model,
                                 .context = 600,
                                 .log = log_warning,
                                 .log_context = message};
    qp_engine *engine = open_engine(options);
    assert_int_equal(qp_engine_get_info(engine)->context, 600);
    assert_non_null(strstr(message, "600"));
    assert_non_null(strstr(message, "512"));
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_sessions_continue_as_fresh_ones),
        cmocka_unit_test(a_full_context_is_refused_with_both_numbers),
        cmocka_unit_test(a_full_context_says_where_its_length_is_from),
        cmocka_unit_test(tokens_outside_the_vocabulary_change_nothing),
        cmocka_unit_test(sessions_are_counted),
        cmocka_unit_test(sessions_decode_side_by_side),
        cmocka_unit_test(decoding_refuses_what_it_cannot_do),
        cmocka_unit_test(empty_inputs_do_nothing),
        cmocka_unit_test(a_session_twice_in_a_call_is_refused),
        cmocka_unit_test(cancellation_keeps_whole_chunks),
        cmocka_unit_test(a_callback_ends_the_evaluation),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(a_context_past_the_model_s_is_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
