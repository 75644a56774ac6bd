/* Several answers at a time: each has the same tokens as alone, whatever its settings are and
 * whenever the others end.
 */
#include "engine_test.h"

#include <stdlib.h>

enum { ANSWERS = 6, MOST = 200, PROMPT = 9 };

static const char text_model[] = "golden/models/llama-text.gguf";
static qp_error error;

/* What came of an answer. */
typedef struct record {
    int32_t tokens[MOST];
    int n_tokens;
    char text[8192];
    size_t length;
    qp_generate_result result;
    int cancel, cancel_after; /* tokens; 0: never */
    qp_status fail_with;
} record;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    record *r = context;
    if (r->fail_with != QP_OK) return r->fail_with;
    assert_true(r->length + length < sizeof r->text && r->n_tokens < MOST);
    memcpy(r->text + r->length, text, length);
    r->length += length;
    if (token >= 0) r->tokens[r->n_tokens++] = token;
    if (r->cancel_after && r->n_tokens == r->cancel_after) r->cancel = 1;
    return QP_OK;
}

/* Answers that are all different: prompt, settings, end. */
typedef struct request {
    int32_t prompt[PROMPT];
    qp_sampling sampling;
    qp_logit_bias bias;
    qp_generate_options options;
} request;

static const char *const stops[] = {"e", "th"};

static void set(request *r, qp_setting setting, double value)
{
    assert_ok(qp_sampling_set(&r->sampling, setting, value, QP_FROM_REQUEST, &error));
}

static void make_request(const qp_engine *engine, int i, record *to, request *r)
{
    *r = (request){.sampling.size = sizeof r->sampling};
    to->result.size = sizeof to->result;
    for (int t = 0; t < PROMPT; t++)
        r->prompt[t] = (i * 37 + t * 11 + 5) % 250;
    assert_int_equal(qp_sampling_defaults(engine, &r->sampling, NULL), QP_OK);
    set(r, QP_TEMPERATURE, i == 0 ? 0 : 0.5 + 0.25 * i);
    set(r, QP_SEED, 100 + i);
    if (i != 5) r->sampling.n_stop_tokens = 0;
    if (i == 2) set(r, QP_TOP_K, 20);
    if (i == 2) set(r, QP_TOP_P, 0.9);
    if (i == 3) set(r, QP_REPETITION_PENALTY, 1.3);
    if (i == 3) set(r, QP_FREQUENCY_PENALTY, 0.4);
    if (i == 4) r->sampling.stops = stops, r->sampling.n_stops = 2;
    r->bias = (qp_logit_bias){17, 1.5f};
    if (i == 5) r->sampling.logit_bias = &r->bias, r->sampling.n_logit_bias = 1;
    static const int64_t most[ANSWERS] = {25, 60, 7, 31, 60, 44};
    static const int64_t intervals[ANSWERS] = {0, 3, 0, 1, 16, 2};
    r->options = (qp_generate_options){.size = sizeof(qp_generate_options),
                                       .prompt = r->prompt,
                                       .n_prompt = (size_t)(2 + i % 3 * 3),
                                       .sampling = &r->sampling,
                                       .max_tokens = most[i],
                                       .eos_interval = intervals[i],
                                       .cancel = &to->cancel,
                                       .on_token = on_token,
                                       .context = to};
}

/* Requests of ANSWERS new sessions. */
typedef struct scene {
    qp_engine *engine;
    request requests[ANSWERS];
    qp_answer answers[ANSWERS];
    record records[ANSWERS];
} scene;

static void set_scene(scene *s, qp_engine_options options)
{
    memset(s, 0, sizeof *s);
    options.max_sessions = ANSWERS;
    s->engine = open_engine(options);
    for (int i = 0; i < ANSWERS; i++) {
        make_request(s->engine, i, &s->records[i], &s->requests[i]);
        s->answers[i] =
            (qp_answer){open_session(s->engine), &s->requests[i].options, &s->records[i].result};
    }
}

static void end_scene(scene *s)
{
    for (int i = 0; i < ANSWERS; i++)
        qp_session_close(s->answers[i].session);
    qp_engine_close(s->engine);
}

static void answer_alone(scene *s)
{
    for (int i = 0; i < ANSWERS; i++)
        assert_ok(qp_generate(s->answers[i].session, s->answers[i].options, s->answers[i].result,
                              &error));
}

static void check_same(const scene *alone, const scene *together, int i)
{
    const record *a = &alone->records[i], *b = &together->records[i];
    size_t held[2];
    const int32_t *tokens[2] = {qp_session_tokens(alone->answers[i].session, &held[0]),
                                qp_session_tokens(together->answers[i].session, &held[1])};
    assert_int_equal(b->n_tokens, a->n_tokens);
    assert_memory_equal(b->tokens, a->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
    assert_int_equal(b->length, a->length);
    assert_memory_equal(b->text, a->text, a->length);
    assert_int_equal(b->result.finish, a->result.finish);
    assert_int_equal(b->result.prompt_tokens, a->result.prompt_tokens);
    assert_int_equal(b->result.generated_tokens, a->result.generated_tokens);
    assert_int_equal(held[1], held[0]);
    assert_memory_equal(tokens[1], tokens[0], held[0] * sizeof(int32_t));
}

static void they_are_what_they_are_alone(void **state)
{
    (void)state;
    static const qp_engine_options ways[] = {
        {.model = text_model, .threads = 2},
        {.model = text_model, .exec = "operators", .chunk = 8},
        {.model = text_model, .exec = "reference", .context = 40}, /* some fill it */
        {.model = "synthetic:tiny:Q4_K", .kv_type = "F32", .fuse = true},
    };
    static scene alone, together;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        set_scene(&alone, ways[w]);
        set_scene(&together, ways[w]);
        answer_alone(&alone);
        assert_ok(qp_generate_together(together.answers, ANSWERS, &error));
        for (int i = 0; i < ANSWERS; i++)
            check_same(&alone, &together, i);
        if (ways[w].context == 0) {
            /* The conversations go on. */
            answer_alone(&alone);
            assert_ok(qp_generate_together(together.answers, ANSWERS, &error));
            for (int i = 0; i < ANSWERS; i++)
                check_same(&alone, &together, i);
        }
        end_scene(&alone);
        end_scene(&together);
    }
}

static void one_or_none_is_as_good(void **state)
{
    (void)state;
    static scene alone, together;
    set_scene(&alone, (qp_engine_options){.model = text_model});
    set_scene(&together, (qp_engine_options){.model = text_model});
    answer_alone(&alone);
    assert_ok(qp_generate_together(NULL, 0, &error));
    for (int i = 0; i < ANSWERS; i++) {
        together.answers[i].result = NULL;
        assert_ok(qp_generate_together(&together.answers[i], 1, &error));
        assert_memory_equal(together.records[i].tokens, alone.records[i].tokens,
                            sizeof alone.records[i].tokens);
    }
    end_scene(&alone);
    end_scene(&together);
}

static void one_is_cancelled_alone(void **state)
{
    (void)state;
    static scene alone, together;
    set_scene(&alone, (qp_engine_options){.model = text_model});
    set_scene(&together, (qp_engine_options){.model = text_model});
    answer_alone(&alone);
    together.records[1].cancel_after = 4;
    assert_ok(qp_generate_together(together.answers, ANSWERS, &error));
    const record *cut = &together.records[1];
    assert_int_equal(cut->result.finish, QP_FINISH_CANCELLED);
    assert_int_equal(cut->n_tokens, 4);
    assert_memory_equal(cut->tokens, alone.records[1].tokens, 4 * sizeof *cut->tokens);
    for (int i = 0; i < ANSWERS; i++)
        if (i != 1) check_same(&alone, &together, i);
    end_scene(&alone);
    end_scene(&together);
}

/* Cancelled for all before it begins: nothing is done, nothing is wrong. */
static void all_are_cancelled(void **state)
{
    (void)state;
    static scene together;
    static const volatile int cancel = 1;
    set_scene(&together, (qp_engine_options){.model = text_model});
    for (int i = 0; i < ANSWERS; i++)
        together.requests[i].options.cancel = &cancel;
    assert_ok(qp_generate_together(together.answers, ANSWERS, &error));
    for (int i = 0; i < ANSWERS; i++) {
        assert_int_equal(together.records[i].result.finish, QP_FINISH_CANCELLED);
        assert_int_equal(together.records[i].n_tokens, 0);
    }
    end_scene(&together);
}

static void faults_are_named(void **state)
{
    (void)state;
    static scene s;
    set_scene(&s, (qp_engine_options){.model = text_model});
    s.records[2].fail_with = QP_IO;
    assert_int_equal(qp_generate_together(s.answers, ANSWERS, &error), QP_IO);
    assert_non_null(strstr(error.message, "answer 2: a callback ended the call"));
    s.requests[4].options.n_prompt = 0;
    assert_int_equal(qp_generate_together(s.answers, ANSWERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "answer 4: the prompt is empty"));
    s.requests[4].options.n_prompt = 1;
    s.requests[1].bias.token = 1 << 20;
    s.requests[1].sampling.logit_bias = &s.requests[1].bias;
    s.requests[1].sampling.n_logit_bias = 1;
    assert_int_equal(qp_generate_together(s.answers, ANSWERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "answer 1: the logit bias names token 1048576"));
    s.requests[1].sampling.n_logit_bias = 0;
    qp_session *twice = s.answers[3].session;
    s.answers[3].session = s.answers[0].session;
    assert_int_equal(qp_generate_together(s.answers, ANSWERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "names a session that is given twice"));
    s.answers[3].session = twice;
    end_scene(&s);
    set_scene(&s, (qp_engine_options){.model = text_model, .max_outputs = 3});
    assert_int_equal(qp_generate_together(s.answers, ANSWERS, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "rows of logits"));
    end_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_what_they_are_alone),
        cmocka_unit_test(one_or_none_is_as_good),
        cmocka_unit_test(one_is_cancelled_alone),
        cmocka_unit_test(all_are_cancelled),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
