/* Settings of sampling: their ranges, their sources, and generation_config.json. */
#include "engine_test.h"
#include "model_files.h"

#include "base/hash.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/vocabulary.h"

#include <math.h>

static const char text_model[] = "golden/models/llama-text";
static qp_error error;

static void settings_have_ranges(void **state)
{
    (void)state;
    static const struct {
        qp_setting setting;
        const char *name;
        double good[3], wrong[4];
    } cases[] = {
        {QP_TEMPERATURE, "temperature", {0, 0.7, 100}, {-0.1, 100.5, NAN, INFINITY}},
        {QP_TOP_K, "top_k", {0, 1, 40}, {-1, 0.5, NAN, 1e12}},
        {QP_TOP_P, "top_p", {0, 0.5, 1}, {-0.1, 1.1, NAN, INFINITY}},
        {QP_MIN_P, "min_p", {0, 0.5, 1}, {-0.1, 1.1, NAN, -INFINITY}},
        {QP_REPETITION_PENALTY, "repetition_penalty", {0.5, 1, 2}, {0, -1, NAN, INFINITY}},
        {QP_PRESENCE_PENALTY, "presence_penalty", {-2, 0, 2}, {-101, 101, NAN, INFINITY}},
        {QP_FREQUENCY_PENALTY, "frequency_penalty", {-2, 0, 2}, {-101, 101, NAN, INFINITY}},
        {QP_SEED, "seed", {0, 1, 9007199254740992}, {-1, 0.5, NAN, 1e300}},
        {QP_TYPICAL_P, "typical_p", {0, 0.5, 1}, {-0.1, 1.1, NAN, INFINITY}},
        {QP_TOP_N_SIGMA, "top_n_sigma", {-1, 0, 2.5}, {-1.5, 2000, NAN, INFINITY}},
        {QP_MIN_KEEP, "min_keep", {0, 1, 40}, {-1, 0.5, NAN, 1e12}},
        {QP_XTC_PROBABILITY, "xtc_probability", {0, 0.5, 1}, {-0.1, 1.1, NAN, INFINITY}},
        {QP_XTC_THRESHOLD, "xtc_threshold", {0, 0.5, 1}, {-0.1, 1.1, NAN, INFINITY}},
        {QP_DRY_MULTIPLIER, "dry_multiplier", {0, 0.8, 2}, {-0.1, 1e4, NAN, INFINITY}},
        {QP_DRY_BASE, "dry_base", {1, 1.75, 4}, {-0.1, 1e4, NAN, INFINITY}},
        {QP_DRY_ALLOWED_LENGTH, "dry_allowed_length", {0, 2, 40}, {-1, 0.5, NAN, 1e12}},
        {QP_DRY_PENALTY_LAST_N, "dry_penalty_last_n", {-1, 0, 64}, {-2, 0.5, NAN, 1e12}},
        {QP_MIROSTAT, "mirostat", {0, 1, 2}, {-1, 0.5, NAN, 3}},
        {QP_MIROSTAT_TAU, "mirostat_tau", {0, 5, 10}, {-0.1, 101, NAN, INFINITY}},
        {QP_MIROSTAT_ETA, "mirostat_eta", {0, 0.1, 1}, {-0.1, 1.1, NAN, INFINITY}},
    };
    for (int c = 0; c < QP_SETTING_COUNT; c++) {
        qp_sampling s = {.size = sizeof s};
        assert_int_equal(cases[c].setting, c);
        assert_string_equal(qp_setting_name(cases[c].setting), cases[c].name);
        for (int i = 0; i < 3; i++) {
            assert_ok(
                qp_sampling_set(&s, cases[c].setting, cases[c].good[i], QP_FROM_REQUEST, &error));
            assert_true(s.value[c] == cases[c].good[i]);
        }
        for (int i = 0; i < 4; i++) {
            assert_int_equal(
                qp_sampling_set(&s, cases[c].setting, cases[c].wrong[i], QP_FROM_REQUEST, &error),
                QP_INVALID);
            assert_non_null(strstr(error.message, cases[c].name));
            assert_true(s.value[c] == cases[c].good[2]);
        }
    }
}

/* The source with the higher precedence wins, in any order of calls; a source may change its own
 * value. */
static void higher_sources_win(void **state)
{
    (void)state;
    static const qp_source sources[] = {QP_FROM_NEUTRAL, QP_FROM_MODEL, QP_FROM_PROGRAM,
                                        QP_FROM_REQUEST};
    for (int order = 0; order < 24; order++) {
        qp_sampling s = {.size = sizeof s};
        int left[4] = {0, 1, 2, 3}, code = order;
        for (int n = 4; n > 0; n--) {
            int pick = code % n, source = left[pick];
            code /= n;
            left[pick] = left[n - 1];
            assert_ok(qp_sampling_set(&s, QP_TEMPERATURE, 1 + source, sources[source], &error));
        }
        assert_true(s.value[QP_TEMPERATURE] == 4);
        assert_int_equal(s.source[QP_TEMPERATURE], QP_FROM_REQUEST);
    }
    qp_sampling s = {.size = sizeof s};
    assert_ok(qp_sampling_set(&s, QP_TOP_K, 5, QP_FROM_PROGRAM, &error));
    assert_ok(qp_sampling_set(&s, QP_TOP_K, 7, QP_FROM_PROGRAM, &error));
    assert_ok(qp_sampling_set(&s, QP_TOP_K, 9, QP_FROM_MODEL, &error));
    assert_true(s.value[QP_TOP_K] == 7);
    assert_int_equal(s.source[QP_TOP_K], QP_FROM_PROGRAM);
}

/* A folder with the text model's files and this generation_config.json (NULL: none). */
static void make_folder(char folder[64], const char *generation_config)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    folder_make(folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[256];
        size_t bytes = 0;
        snprintf(from, sizeof from, "%s/%s", text_model, names[i]);
        char *data = read_whole(from, &bytes);
        assert_non_null(data);
        folder_write(folder, names[i], data, bytes);
        free(data);
    }
    if (generation_config) folder_write_text(folder, "generation_config.json", generation_config);
}

static qp_status open_with(const char *generation_config, qp_sampling *s)
{
    char folder[64];
    make_folder(folder, generation_config);
    qp_engine_options options = {.size = sizeof options, .model = folder, .threads = 1};
    qp_engine *engine = NULL;
    qp_status status = qp_engine_open(&options, &engine, &error);
    s->size = sizeof *s;
    if (status == QP_OK) status = qp_sampling_defaults(engine, s, &error);
    qp_engine_close(engine);
    folder_remove(folder);
    return status;
}

static void generation_config_is_read(void **state)
{
    (void)state;
    qp_sampling s = {.size = sizeof s};
    assert_ok(open_with(NULL, &s));
    static const double neutral[QP_SETTING_COUNT] = {1, 0, 1,   0, 1,    0, 0,  0, 1, 0,
                                                     0, 0, 0.1, 0, 1.75, 2, -1, 0, 5, 0.1};
    for (int i = 0; i < QP_SETTING_COUNT; i++) {
        assert_true(s.value[i] == neutral[i]);
        assert_int_equal(s.source[i], QP_FROM_NEUTRAL);
    }
    assert_ok(open_with("{\"temperature\":0.6,\"top_k\":50,\"top_p\":0.9,\"min_p\":0.05,"
                        "\"repetition_penalty\":1.1,\"do_sample\":true,\"eos_token_id\":[7,2,9],"
                        "\"bos_token_id\":1,\"transformers_version\":\"4.40\"}",
                        &s));
    static const double want[] = {0.6, 50, 0.9, 0.05, 1.1};
    for (int i = 0; i < 5; i++) {
        assert_true(s.value[i] == want[i]);
        assert_int_equal(s.source[i], QP_FROM_MODEL);
    }
    assert_int_equal(s.source[QP_SEED], QP_FROM_NEUTRAL);
    /* The tokenizer's, config.json's, then this file's, each once. */
    const int32_t stops[] = {2, 7, 9};
    assert_int_equal(s.n_stop_tokens, 3);
    assert_memory_equal(s.stop_tokens, stops, sizeof stops);
    assert_ok(open_with("{\"temperature\":0.6,\"do_sample\":false,\"eos_token_id\":null}", &s));
    assert_true(s.value[QP_TEMPERATURE] == 0);
    assert_int_equal(s.source[QP_TEMPERATURE], QP_FROM_MODEL);
    assert_ok(open_with("{\"temperature\":null,\"top_k\":null}", &s));
    assert_int_equal(s.source[QP_TOP_K], QP_FROM_NEUTRAL);
}

static void wrong_generation_configs_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *json, *parts[2];
    } cases[] = {
        {"{\"temperature\":\"hot\"}", {"\"temperature\"", "a number"}},
        {"{\"temperature\":-1}", {"temperature", "found -1"}},
        {"{\"top_p\":1.5}", {"top_p", "found 1.5"}},
        {"{\"top_k\":2.5}", {"top_k", "whole"}},
        {"{\"do_sample\":1}", {"\"do_sample\"", "true or false"}},
        {"{\"eos_token_id\":\"</s>\"}", {"\"eos_token_id\"", "a string"}},
        {"{\"eos_token_id\":[2,\"</s>\"]}", {"\"eos_token_id\"", "a string"}},
        {"{\"eos_token_id\":[2,2.5]}", {"\"eos_token_id\"", "2.5"}},
        {"{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         {"\"eos_token_id\"", "16"}},
        {"[1]", {"an object", "an array"}},
        {"{\"temperature\":", {"JSON", "line 1"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qp_sampling s = {.size = sizeof s};
        memset(&error, 0, sizeof error);
        qp_status status = open_with(cases[i].json, &s);
        if (status == QP_OK || !strstr(error.message, "generation_config.json") ||
            !strstr(error.message, cases[i].parts[0]) || !strstr(error.message, cases[i].parts[1]))
            fail_msg("%s: status %d, %s", cases[i].json, status, error.message);
    }
}

/* What a sampler knows of a text's breakers from the calls before is what a new one finds: texts
 * get longer and shorter, and go on otherwise. */
static void dry_finds_breakers_in_any_order(void **state)
{
    (void)state;
    enum { LONGEST = 40, STEPS = 600 };
    qp_error error;
    qp_engine *engine =
        open_engine((qp_engine_options){.model = "golden/models/llama-text.gguf", .context = 64});
    const int64_t vocab = qp_engine_get_info(engine)->vocab_size;
    const char *const breakers[] = {"a", "bb", "cab"};
    qp_sampling sampling = {.size = sizeof sampling};
    assert_ok(qp_sampling_defaults(engine, &sampling, &error));
    sampling.value[QP_TEMPERATURE] = 0;
    sampling.value[QP_DRY_MULTIPLIER] = 2;
    sampling.value[QP_DRY_ALLOWED_LENGTH] = 1;
    sampling.dry_breakers = breakers;
    sampling.n_dry_breakers = 3;
    qp_sampler *used, *new;
    assert_ok(qp_sampler_open(engine, &sampling, &used, &error));
    float *logits = calloc((size_t)vocab, sizeof *logits);
    int32_t text[LONGEST], abc[3], penalised = 0;
    for (int i = 0; i < 3; i++)
        abc[i] = tokenizer_find(engine->vocabulary->tokenizer, &"abc"[i], 1);
    size_t n = 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        const uint64_t random = hash_random(7, step, 0);
        if (n == LONGEST || random % 5 == 0) n = n ? random / 8 % n : 0; /* another end */
        text[n++] = abc[random / 1024 % 3];
        for (int i = 0; i < 3; i++)
            logits[abc[i]] = 10 + (float)(hash_random(8, step, (uint64_t)i) % 100) / 50;
        int32_t token, expected;
        assert_ok(qp_sampler_open(engine, &sampling, &new, &error));
        assert_ok(sampler_pick(used, logits, text, n, -1, &token, &error));
        assert_ok(sampler_pick(new, logits, text, n, -1, &expected, &error));
        assert_int_equal(token, expected);
        for (int i = 0; i < 3; i++)
            penalised += logits[abc[i]] > logits[expected];
        qp_sampler_close(new);
    }
    assert_in_range(penalised, STEPS / 20, 2 * STEPS); /* DRY changed what was chosen */
    free(logits);
    qp_sampler_close(used);
    qp_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_have_ranges),
        cmocka_unit_test(higher_sources_win),
        cmocka_unit_test(generation_config_is_read),
        cmocka_unit_test(dry_finds_breakers_in_any_order),
        cmocka_unit_test(wrong_generation_configs_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
