/* Small models of every family variant, through the public API, compared with logits that
 * transformers computes in float32 (tests/scripts/model_goldens.py).
 *
 * A reader passes if |got - want| <= 1e-4 max |want| of the row. The fast kernels of the quantised
 * types also round their inputs, to 8 bits in blocks of 32 or 256. An input's error is then up to
 * 1/254 of its block's largest value. Tiny models do not average it over long rows, so logits are
 * off by a few percent.
 */
#include "engine_test.h"
#include "gpu_test.h"

#include "inspect/diff/diff.h"

#include <cjson/cJSON.h>
#include <math.h>

static const char folder[] = "golden/models/";
enum { MAX_IDS = 256 };
static const double ROUNDED_INPUTS_TOLERANCE = 0.05;

typedef struct golden {
    const cJSON *item;
    const char *model;
    char path[512];
    int32_t ids[MAX_IDS];
    size_t n_ids;
    int64_t vocab_size;
} golden;

static size_t read_ids(const cJSON *array, int32_t *ids)
{
    size_t count = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, array)
    {
        assert_true(count < MAX_IDS);
        ids[count++] = id->valueint;
    }
    return count;
}

static golden read_golden(const cJSON *item)
{
    golden g = {.item = item, .model = cJSON_GetObjectItem(item, "model")->valuestring};
    snprintf(g.path, sizeof g.path, "%s%s", folder, g.model);
    g.n_ids = read_ids(cJSON_GetObjectItem(item, "ids"), g.ids);
    g.vocab_size = cJSON_GetObjectItem(item, "vocab_size")->valueint;
    return g;
}

static float *read_logits(const golden *g)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", folder,
             cJSON_GetObjectItem(g->item, "logits")->valuestring);
    size_t bytes = 0;
    float *want = read_whole(path, &bytes);
    if (!want) fail_msg("%s cannot be read", path);
    assert_int_equal(bytes, g->n_ids * (size_t)g->vocab_size * sizeof *want);
    return want;
}

static void compare(const golden *g, const float *got, const float *want, const char *exec,
                    double tolerance)
{
    double worst = 0;
    for (size_t row = 0; row < g->n_ids; row++) {
        const float *a = got + row * (size_t)g->vocab_size, *b = want + row * (size_t)g->vocab_size;
        double most = 0, error = 0;
        for (int64_t i = 0; i < g->vocab_size; i++) {
            assert_true(isfinite(a[i]));
            error = fmax(error, fabs((double)a[i] - (double)b[i]));
            most = fmax(most, fabs((double)b[i]));
        }
        worst = fmax(worst, error / most);
    }
    if (worst > tolerance)
        fail_msg("%s, %s: off by %.3g of a row's largest logit, %g is allowed", g->model, exec,
                 worst, tolerance);
}

/* A prompt's ids from its text, and the ids that follow it greedily. */
static void check_text(const golden *g, qp_engine *engine)
{
    const cJSON *text = cJSON_GetObjectItem(g->item, "text");
    if (!text) return;
    qp_error error;
    qp_tokens tokens = {0};
    assert_ok(qp_tokenize(qp_engine_vocabulary(engine), text->valuestring,
                          strlen(text->valuestring), QP_BOS_DEFAULT, &tokens, &error));
    assert_int_equal(tokens.count, g->n_ids);
    assert_memory_equal(tokens.data, g->ids, g->n_ids * sizeof *g->ids);

    int32_t greedy[MAX_IDS];
    size_t n_greedy = read_ids(cJSON_GetObjectItem(g->item, "greedy"), greedy);
    qp_sampling sampling = {.size = sizeof sampling};
    assert_int_equal(qp_sampling_defaults(engine, &sampling, NULL), QP_OK);
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    sampling.n_stop_tokens = 0;
    qp_session *session = open_session(engine);
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = tokens.data,
                                   .n_prompt = tokens.count,
                                   .sampling = &sampling,
                                   .max_tokens = (int64_t)n_greedy + 1};
    qp_generate_result result = {.size = sizeof result};
    assert_ok(qp_generate(session, &options, &result, &error));
    size_t count;
    const int32_t *held = qp_session_tokens(session, &count);
    assert_int_equal(count, g->n_ids + n_greedy);
    assert_memory_equal(held + g->n_ids, greedy, n_greedy * sizeof *greedy);
    qp_session_close(session);
    qp_tokens_free(&tokens);
}

static void check_golden(const golden *g, const char *exec, const char *cpu_mask, double tolerance)
{
    qp_engine *engine = open_engine((qp_engine_options){.model = g->path,
                                                        .exec = exec,
                                                        .cpu_mask = cpu_mask,
                                                        .kv_type = "F32",
                                                        .context = 80,
                                                        .max_outputs = 32});
    assert_int_equal(qp_engine_get_info(engine)->vocab_size, g->vocab_size);
    float *want = read_logits(g), *got = eval_fresh(engine, g->ids, g->n_ids);
    compare(g, got, want, exec, tolerance);
    check_text(g, engine);
    free(want);
    free(got);
    qp_engine_close(engine);
}

static cJSON *read_manifest(void)
{
    size_t length = 0;
    char *text = read_whole("golden/models/manifest.json", &length);
    assert_non_null(text);
    cJSON *manifest = cJSON_ParseWithLength(text, length);
    assert_non_null(manifest);
    free(text);
    return manifest;
}

static void run_all(const char *exec, const char *cpu_mask)
{
    cJSON *manifest = read_manifest();
    double tolerance = cJSON_GetObjectItem(manifest, "tolerance")->valuedouble;
    int count = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(manifest, "cases"))
    {
        golden g = read_golden(item);
        bool rounded = strstr(g.model, "blocks") && strcmp(exec, "reference") != 0;
        check_golden(&g, exec, cpu_mask, rounded ? ROUNDED_INPUTS_TOLERANCE : tolerance);
        count++;
    }
    assert_true(count >= 48);
    cJSON_Delete(manifest);
}

static void references_agree_with_transformers(void **state)
{
    (void)state;
    run_all("reference", NULL);
}

static void fast_kernels_agree_with_transformers(void **state)
{
    (void)state;
    run_all("operators", NULL);
    run_all("operators", "avx512f");
    run_all("operators", "avx512f,avx_vnni");
    run_all("operators", "all");
}

/* Every step on a GPU is within its operator's tolerance of the reference, and a whole pass, whose
 * launches are fused, has the bits of its steps. */
static void a_gpu_agrees_with_references(void **state)
{
    (void)state;
    require_gpu();
    cJSON *manifest = read_manifest();
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(manifest, "cases"))
    {
        golden g = read_golden(item);
        const diff_options options = {.model = g.path, .b = "cuda", .singles = 2};
        strbuf found = {0};
        bool equal = false;
        qp_error error;
        if (diff_print(&options, &found, &equal, &error) != QP_OK)
            fail_msg("%s: %s", g.model, error.message);
        if (!equal) fail_msg("%s:\n%s", g.model, strbuf_text(&found));
        strbuf_free(&found);
    }
    cJSON_Delete(manifest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_agree_with_transformers),
        cmocka_unit_test(fast_kernels_agree_with_transformers),
        cmocka_unit_test(a_gpu_agrees_with_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
