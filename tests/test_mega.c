/* The megakernel: the tokens that a GPU makes by itself are those that it makes operator by
 * operator. Without a GPU, what is said where one is asked for. */
#include "engine_test.h"
#include "generate/engine.h"

#include <string.h>

enum { PROMPT = 21, MADE = 120 };

static bool gpu_is_here(void)
{
    cuda_device device;
    bool here = cuda_device_open(&device, NULL) == QP_OK && device.major == 9;
    cuda_device_close(&device);
    return here;
}

typedef struct token_list {
    int32_t of[MADE];
    int count;
} token_list;

static qp_status keep_token(void *context, int32_t token, const char *text, size_t length)
{
    token_list *list = context;
    (void)text, (void)length;
    if (token >= 0 && list->count < MADE) list->of[list->count++] = token;
    return QP_OK;
}

/* The likeliest tokens behind a prompt that ends within a page. */
static void make_tokens(const char *model, const char *exec, const char *kv_type, int64_t interval,
                        token_list *out)
{
    qp_engine *engine = open_engine((qp_engine_options){
        .model = model, .device = "cuda", .exec = exec, .kv_type = kv_type, .context = 1024});
    qp_session *session = open_session(engine);
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (i * 97 + 5) % 500;
    qp_error error;
    qp_sampling sampling;
    qp_sampling_defaults(engine, &sampling);
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    sampling.n_stop_tokens = 0;
    out->count = 0;
    qp_generate_options options = {.prompt = prompt,
                                   .n_prompt = PROMPT,
                                   .sampling = &sampling,
                                   .max_tokens = MADE,
                                   .eos_interval = interval,
                                   .on_token = keep_token,
                                   .context = out};
    assert_ok(qp_generate(session, &options, NULL, &error));
    assert_int_equal(out->count, MADE);
    qp_session_close(session);
    qp_engine_close(engine);
}

static void it_makes_the_same_tokens(void **state)
{
    (void)state;
    if (!gpu_is_here()) skip();
    static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:smollm2-135m:BF16"};
    static const char *const kv_types[] = {"F16", "BF16"};
    for (int i = 0; i < 4; i++) {
        token_list expected, found;
        make_tokens(models[i / 2], "ops", kv_types[i % 2], 1, &expected);
        static const int64_t intervals[] = {1, 16, 50, 128};
        for (int j = 0; j < 4; j++) {
            make_tokens(models[i / 2], "mk", kv_types[i % 2], intervals[j], &found);
            assert_memory_equal(expected.of, found.of, sizeof expected.of);
        }
    }
}

static void it_says_what_it_does_not_run(void **state)
{
    (void)state;
    if (!gpu_is_here()) skip();
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {
        .model = "synthetic:tiny:Q8_0", .threads = 1, .device = "cuda", .exec = "mk"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "BF16"));
    options.exec = NULL; /* operators then */
    assert_ok(qp_engine_open(&options, &engine, &error));
    assert_null(engine->mega.kernel);
    qp_engine_close(engine);
}

static void it_runs_on_no_cpu(void **state)
{
    (void)state;
    qp_engine *engine = NULL;
    qp_error error;
    qp_engine_options options = {.model = "synthetic:tiny:BF16", .threads = 1, .exec = "mk"};
    assert_int_equal(qp_engine_open(&options, &engine, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "--device cuda"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_makes_the_same_tokens),
        cmocka_unit_test(it_says_what_it_does_not_run),
        cmocka_unit_test(it_runs_on_no_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
