/* Structs of quipu.h that begin with their size, in the forms of programs that were built with
 * another version of the header: shorter, longer, and with an invalid size.
 */
#include "base/sized.h"
#include "engine_test.h"

#include <stdlib.h>
#include <string.h>

static const char text_model[] = "golden/models/llama-text.gguf";

enum { PROMPT = 5, TOKENS = 6, LONGER = 24 };

static const int32_t prompt[PROMPT] = {1, 20, 30, 40, 50};

/* A struct as this library has it. */
typedef struct known {
    size_t size;
    int a, b;
    const char *c;
} known;

/* The same as a later version has it. */
typedef struct later {
    known first;
    int d, e;
} later;

static void the_size_says_what_is_there(void **state)
{
    (void)state;
    qp_error error;
    const char *const text = "text";
    const known same = {sizeof same, 1, 2, text};
    known out;
    assert_ok(SIZED_READ(known, &same, &out, &error));
    assert_memory_equal(&out, &same, sizeof out);
    const struct {
        size_t size;
        int a, b;
    } shorter = {sizeof shorter, 1, 2};
    assert_ok(SIZED_READ(known, &shorter, &out, &error));
    assert_true(out.size == sizeof out && out.a == 1 && out.b == 2 && out.c == NULL);
    later longer = {{sizeof longer, 1, 2, text}, 0, 0};
    assert_ok(SIZED_READ(known, &longer, &out, &error));
    assert_memory_equal(&out, &same, sizeof out);
    longer.e = 1;
    assert_int_equal(SIZED_READ(known, &longer, &out, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "a member of known at byte 28 is set"));
}

static void what_is_written_has_the_callers_size(void **state)
{
    (void)state;
    qp_error error;
    const known from = {sizeof from, 1, 2, "text"};
    struct {
        size_t size;
        int a, b;
        size_t guard;
    } shorter = {offsetof(known, c), 7, 7, 77};
    assert_ok(SIZED_WRITE(known, &from, &shorter, &error));
    assert_true(shorter.size == 16 && shorter.a == 1 && shorter.b == 2 && shorter.guard == 77);
    later longer = {{sizeof longer, 7, 7, NULL}, 7, 7};
    assert_ok(SIZED_WRITE(known, &from, &longer, &error));
    assert_true(longer.first.size == sizeof longer && longer.first.c == from.c);
    assert_true(longer.d == 0 && longer.e == 0);
}

static void a_size_that_is_none_is_refused(void **state)
{
    (void)state;
    static const size_t wrong[] = {0, 1, sizeof(size_t) - 1, 4097, SIZE_MAX};
    qp_error error;
    known out = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        known given = {wrong[i], 1, 2, NULL};
        assert_int_equal(SIZED_READ(known, &given, &out, &error), QP_INVALID);
        assert_int_equal(SIZED_WRITE(known, &out, &given, &error), QP_INVALID);
        assert_non_null(strstr(error.message, "set it to sizeof(known), which is 24"));
    }
    assert_int_equal(SIZED_READ(known, NULL, &out, &error), QP_INVALID);
    assert_string_equal(error.message, "known is NULL");
}

#define REFUSES(call, name)                                                                        \
    do {                                                                                           \
        error = (qp_error){0};                                                                     \
        assert_int_equal(call, QP_INVALID);                                                        \
        if (!strstr(error.message, "size of " name " is 0"))                                       \
            fail_msg("expected %s in: %s", name, error.message);                                   \
    } while (0)

static void every_function_names_the_struct_without_a_size(void **state)
{
    (void)state;
    qp_error error;
    qp_engine *engine = open_engine((qp_engine_options){.model = text_model}), *none;
    qp_session *session = open_session(engine);
    qp_sampling sampling = {.size = sizeof sampling};
    qp_sampler *sampler;
    qp_trace *trace;
    char *text;
    const qp_generate_options options = {
        .size = sizeof options, .prompt = prompt, .n_prompt = PROMPT, .max_tokens = 1};
    qp_generate_options bad = options;
    bad.sampling = &(qp_sampling){0};
    REFUSES(qp_engine_open(&(qp_engine_options){.model = text_model}, &none, &error),
            "qp_engine_options");
    assert_null(none);
    REFUSES(qp_convert(&(qp_convert_options){.model = text_model}, &error), "qp_convert_options");
    REFUSES(qp_describe_plan(&(qp_plan_options){.model = text_model}, true, &text, &error),
            "qp_plan_options");
    assert_null(text);
    REFUSES(qp_sampling_defaults(engine, &(qp_sampling){0}, &error), "qp_sampling");
    REFUSES(qp_sampling_set(&(qp_sampling){0}, QP_TOP_K, 1, QP_FROM_REQUEST, &error),
            "qp_sampling");
    REFUSES(qp_sampler_open(engine, &(qp_sampling){0}, &sampler, &error), "qp_sampling");
    REFUSES(qp_step(engine, &(qp_sequence){.session = session}, 1, &error), "qp_sequence");
    REFUSES(qp_generate(session, &(qp_generate_options){0}, NULL, &error), "qp_generate_options");
    REFUSES(qp_generate(session, &bad, NULL, &error), "qp_sampling");
    REFUSES(qp_generate(session, &options, &(qp_generate_result){0}, &error), "qp_generate_result");
    REFUSES(qp_trace_open(engine, &(qp_trace_options){.max_passes = 1}, &trace, &error),
            "qp_trace_options");
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    assert_int_equal(
        qp_sampling_set(&sampling, (qp_setting)QP_MAX_SETTINGS, 1, QP_FROM_REQUEST, &error),
        QP_INVALID);
    assert_non_null(strstr(error.message, "no setting 32"));
    qp_session_close(session);
    qp_engine_close(engine);
}

/* A program of an older version leaves an option to its default. */
static void options_that_an_older_program_lacks_have_defaults(void **state)
{
    (void)state;
    qp_error error;
    qp_engine *engine;
    qp_engine_options options = {.size = offsetof(qp_engine_options, context),
                                 .model = text_model,
                                 .threads = 1,
                                 .context = 32, /* from here on not part of the struct */
                                 .kv_type = "none"};
    assert_ok(qp_engine_open(&options, &engine, &error));
    const qp_engine_info *info = qp_engine_get_info(engine);
    assert_int_equal(info->size, sizeof *info);
    assert_true(info->context > 32);
    qp_engine_close(engine);
}

/* ---- sequences ----------------------------------------------------------------------------- */

typedef struct chosen {
    int32_t tokens[TOKENS];
    size_t count;
} chosen;

static qp_status take_token(void *context, int32_t token)
{
    chosen *c = context;
    assert_true(c->count < TOKENS);
    c->tokens[c->count++] = token;
    return QP_OK;
}

/* A prompt that one sequence reads for two, and their answers, by sequences of `size` bytes. */
static void answer(size_t size, chosen answers[2])
{
    qp_error error;
    qp_engine *engine =
        open_engine((qp_engine_options){.model = text_model, .max_sessions = 2, .max_outputs = 2});
    qp_sampling sampling = {.size = sizeof sampling};
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    sampling.n_stop_tokens = 0;
    unsigned char *memory = calloc(2, size);
    qp_sequence *all[2] = {(void *)memory, (void *)(memory + size)};
    for (int i = 0; i < 2; i++) {
        assert_ok(qp_sampling_set(&sampling, QP_SEED, i, QP_FROM_REQUEST, &error));
        *all[i] = (qp_sequence){.size = size,
                                .session = open_session(engine),
                                .tokens = prompt,
                                .count = PROMPT,
                                .like = i ? all[0] : NULL,
                                .max_tokens = 1,
                                .on_token = take_token,
                                .context = &answers[i]};
        assert_ok(qp_sampler_open(engine, &sampling, &all[i]->sampler, &error));
        answers[i].count = 0;
    }
    assert_ok(qp_step(engine, all[0], 2, &error));
    for (int i = 0; i < 2; i++) {
        assert_true(all[i]->size == size && all[i]->like == (i ? all[0] : NULL));
        assert_true(all[i]->read == PROMPT && all[i]->chosen == 1);
        all[i]->like = NULL;
    }
    while (answers[0].count < TOKENS) {
        for (int i = 0; i < 2; i++) {
            all[i]->tokens = &answers[i].tokens[answers[i].count - 1];
            all[i]->count = 1;
        }
        assert_ok(qp_step(engine, all[0], 2, &error));
    }
    for (int i = 0; i < 2; i++) {
        qp_sampler_close(all[i]->sampler);
        qp_session_close(all[i]->session);
    }
    free(memory);
    qp_engine_close(engine);
}

static void sequences_of_any_size_give_the_same_tokens(void **state)
{
    (void)state;
    chosen plain[2], longer[2];
    answer(sizeof(qp_sequence), plain);
    answer(sizeof(qp_sequence) + LONGER, longer);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(plain[i].tokens, longer[i].tokens, sizeof plain[i].tokens);
}

/* Shorter than the results: those are not written. */
static void short_sequences_are_read(void **state)
{
    (void)state;
    qp_error error;
    qp_engine *engine = open_engine((qp_engine_options){.model = text_model});
    qp_session *session = open_session(engine);
    qp_sequence s = {.size = offsetof(qp_sequence, read),
                     .session = session,
                     .tokens = prompt,
                     .count = PROMPT,
                     .read = 77,
                     .passes = 77};
    size_t count;
    assert_ok(qp_step(engine, &s, 1, &error));
    qp_session_tokens(session, &count);
    assert_int_equal(count, PROMPT);
    assert_true(s.read == 77 && s.passes == 77);
    qp_session_close(session);
    qp_engine_close(engine);
}

static void sequences_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    qp_error error;
    qp_engine *engine = open_engine((qp_engine_options){.model = text_model, .max_sessions = 2});
    qp_session *sessions[2] = {open_session(engine), open_session(engine)};
    struct {
        qp_sequence known;
        size_t unknown;
    } all[2] = {{.known = {.size = sizeof *all, .session = sessions[0]}},
                {.known = {.size = sizeof *all, .session = sessions[1]}, .unknown = 1}};
    assert_int_equal(qp_step(engine, &all[0].known, 2, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "a member of qp_sequence"));
    all[1].unknown = 0;
    all[1].known.size = sizeof(qp_sequence);
    assert_int_equal(qp_step(engine, &all[0].known, 2, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "the size of sequence 1 is"));
    all[1].known.size = sizeof *all;
    all[1].known.like = (const qp_sequence *)((const char *)&all[0] + sizeof(size_t));
    assert_int_equal(qp_step(engine, &all[0].known, 2, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "to be like another of the call"));
    qp_session_close(sessions[0]);
    qp_session_close(sessions[1]);
    qp_engine_close(engine);
}

/* ---- answers ------------------------------------------------------------------------------- */

static void settings_are_those_of_the_model_without_others(void **state)
{
    (void)state;
    qp_error error;
    qp_engine *engine = open_engine((qp_engine_options){.model = text_model});
    qp_session *session = open_session(engine);
    qp_sampling sampling = {.size = sizeof sampling};
    qp_generate_options options = {
        .size = sizeof options, .prompt = prompt, .n_prompt = PROMPT, .max_tokens = TOKENS};
    int32_t made[2][PROMPT + TOKENS] = {0};
    size_t count;
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    for (int i = 0; i < 2; i++) {
        qp_session_truncate(session, 0, NULL);
        options.sampling = i ? &sampling : NULL;
        assert_ok(qp_generate(session, &options, NULL, &error));
        const int32_t *tokens = qp_session_tokens(session, &count);
        memcpy(made[i], tokens, count * sizeof *tokens);
    }
    assert_memory_equal(made[0], made[1], sizeof made[0]);
    qp_session_close(session);
    qp_engine_close(engine);
}

static void results_have_the_callers_size(void **state)
{
    (void)state;
    qp_error error;
    qp_engine *engine = open_engine((qp_engine_options){.model = text_model});
    qp_session *session = open_session(engine);
    const qp_generate_options options = {
        .size = sizeof options, .prompt = prompt, .n_prompt = PROMPT, .max_tokens = 1};
    qp_generate_result result = {.size = offsetof(qp_generate_result, prompt_seconds),
                                 .prompt_seconds = -1,
                                 .generate_passes = 77};
    assert_ok(qp_generate(session, &options, &result, &error));
    assert_int_equal(result.prompt_tokens, PROMPT);
    assert_true(result.prompt_seconds == -1 && result.generate_passes == 77);
    qp_session_close(session);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_size_says_what_is_there),
        cmocka_unit_test(what_is_written_has_the_callers_size),
        cmocka_unit_test(a_size_that_is_none_is_refused),
        cmocka_unit_test(every_function_names_the_struct_without_a_size),
        cmocka_unit_test(options_that_an_older_program_lacks_have_defaults),
        cmocka_unit_test(sequences_of_any_size_give_the_same_tokens),
        cmocka_unit_test(short_sequences_are_read),
        cmocka_unit_test(sequences_that_do_not_fit_are_refused),
        cmocka_unit_test(settings_are_those_of_the_model_without_others),
        cmocka_unit_test(results_have_the_callers_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
