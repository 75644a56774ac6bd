/* The default model, if it has been fetched: greedy text and logits, compared with those that
 * transformers computes from the same file in float32 (tests/scripts/compare_llama_cpp.py makes the
 * golden file).
 *
 * The references agree to 2e-5. The weights are quantised, so the fast kernels round activations to
 * 8 bits. Thirty layers turn that into a deviation of 0.15 between logits, whose own deviation is
 * 3.4, and into a common shift of all logits, which changes no probability. So differences between
 * logits are compared.
 */
#include "engine_test.h"

#include "base/option_cache.h"

#include <cjson/cJSON.h>
#include <math.h>

static const char file_name[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
static const double REFERENCE_TOLERANCE = 2e-4, FAST_TOLERANCE = 0.25;
enum { MAX_IDS = 128 };

static qp_error error;
static char path[4096];
static cJSON *golden;

static const cJSON *golden_cases(void)
{
    bool there = option_cache_path(file_name, path, sizeof path);
    FILE *file = there ? fopen(path, "rb") : NULL;
    if (!file) {
        skip_because("%s is not in the cache; ./dev fetch-model fetches it", file_name);
    }
    fclose(file);
    if (!golden) {
        size_t bytes = 0;
        char *text = read_whole("golden/default_model.json", &bytes);
        assert_non_null(text);
        golden = cJSON_ParseWithLength(text, bytes);
        free(text);
    }
    return cJSON_GetObjectItem(golden, "cases");
}

static size_t read_ids(const cJSON *item, const char *key, int32_t *ids)
{
    size_t count = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(item, key))
    {
        assert_true(count < MAX_IDS);
        ids[count++] = id->valueint;
    }
    return count;
}

static qp_engine *open_default(const char *exec)
{
    return open_engine((qp_engine_options){.model = path,
                                           .exec = exec,
                                           .kv_type = "F32",
                                           .context = 160,
                                           .max_outputs = 32,
                                           .threads = 2});
}

static void check_tokens(qp_engine *engine, const cJSON *item)
{
    int32_t ids[MAX_IDS];
    size_t count = read_ids(item, "ids", ids);
    const char *text = cJSON_GetObjectItem(item, "prompt")->valuestring;
    bool chat = strcmp(cJSON_GetObjectItem(item, "kind")->valuestring, "chat") == 0;
    qp_tokens tokens = {0};
    assert_ok(qp_tokenize(qp_engine_vocabulary(engine), text, strlen(text),
                          chat ? QP_BOS_NEVER | QP_SPECIAL : QP_BOS_DEFAULT, &tokens, &error));
    assert_int_equal(tokens.count, count);
    assert_memory_equal(tokens.data, ids, count * sizeof *ids);
    qp_tokens_free(&tokens);
}

static void prompts_have_the_same_tokens(void **state)
{
    (void)state;
    const cJSON *cases = golden_cases(), *item;
    qp_engine *engine = open_default("operators");
    assert_int_equal(qp_engine_get_info(engine)->vocab_size, 49152);
    cJSON_ArrayForEach(item, cases) check_tokens(engine, item);
    qp_engine_close(engine);
}

static qp_status keep_last(void *context, size_t input, size_t token, const float *logits)
{
    (void)input, (void)token;
    memcpy(context, logits, 49152 * sizeof *logits);
    return QP_OK;
}

/* The five likeliest tokens after the prompt, with their logits: as they stand, or against each
 * other. */
static void check_top(qp_engine *engine, const cJSON *item, double tolerance, bool as_they_stand)
{
    int32_t ids[MAX_IDS], top[5];
    size_t count = read_ids(item, "ids", ids);
    float *logits = calloc(49152, sizeof *logits);
    qp_session *session = open_session(engine);
    qp_input input = {.session = session, .tokens = ids, .count = count};
    assert_ok(qp_eval(engine, &input, 1, keep_last, logits, NULL, &error));
    qp_session_close(session);

    double want[5], shift = 0;
    for (int i = 0; i < 5; i++) {
        const cJSON *pair = cJSON_GetArrayItem(cJSON_GetObjectItem(item, "top"), i);
        top[i] = cJSON_GetArrayItem(pair, 0)->valueint;
        want[i] = cJSON_GetArrayItem(pair, 1)->valuedouble;
        shift += ((double)logits[top[i]] - want[i]) / 5;
    }
    if (as_they_stand) shift = 0;
    for (int i = 0; i < 5; i++) {
        double got = (double)logits[top[i]] - shift;
        if (fabs(got - want[i]) > tolerance)
            fail_msg("token %d after \"%s\": %.5f instead of %.5f", top[i],
                     cJSON_GetObjectItem(item, "prompt")->valuestring, got, want[i]);
    }
    int above = 0; /* no other token is likelier */
    for (int i = 0; i < 49152; i++)
        above += (double)logits[i] - shift > want[4] + 2 * tolerance;
    assert_true(above <= 5);
    free(logits);
}

static void reference_logits_are_those_of_transformers(void **state)
{
    (void)state;
    const cJSON *cases = golden_cases();
    qp_engine *engine = open_default("reference"); /* one prompt: the references take their time */
    check_top(engine, cJSON_GetArrayItem(cases, 1), REFERENCE_TOLERANCE, true);
    qp_engine_close(engine);
}

static void fast_logits_are_near(void **state)
{
    (void)state;
    const cJSON *cases = golden_cases();
    qp_engine *engine = open_default("operators");
    for (int i = 0; i < 4; i++)
        check_top(engine, cJSON_GetArrayItem(cases, i), FAST_TOLERANCE, false);
    qp_engine_close(engine);
}

/* How the golden text's tokens fare against the likeliest ones. */
typedef struct follower {
    const int32_t *golden;
    size_t first, steps, same; /* rows from `first` on predict golden tokens */
    double largest_gap;        /* from the likeliest logit to the golden token's */
} follower;

static qp_status follow(void *context, size_t input, size_t token, const float *logits)
{
    (void)input;
    follower *f = context;
    if (token < f->first) return QP_OK;
    int best = 0, golden_id = f->golden[token - f->first];
    for (int i = 1; i < 49152; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    f->steps++;
    f->same += best == golden_id;
    f->largest_gap = fmax(f->largest_gap, (double)(logits[best] - logits[golden_id]));
    return QP_OK;
}

/* Evaluates the prompt and the first n golden tokens after it. */
static follower follow_golden(qp_engine *engine, const cJSON *item, size_t n)
{
    int32_t ids[2 * MAX_IDS], greedy[MAX_IDS];
    size_t count = read_ids(item, "ids", ids);
    assert_true(read_ids(item, "greedy", greedy) >= n);
    memcpy(ids + count, greedy, n * sizeof *greedy);
    follower f = {.golden = greedy, .first = count - 1};
    qp_session *session = open_session(engine);
    qp_input input = {session, ids, count + n - 1, true};
    assert_ok(qp_eval(engine, &input, 1, follow, &f, NULL, &error));
    qp_session_close(session);
    assert_int_equal(f.steps, n);
    return f;
}

static void greedy_text_is_that_of_transformers(void **state)
{
    (void)state;
    const cJSON *cases = golden_cases(), *item;
    qp_engine *engine = open_default("reference");
    follower f = follow_golden(engine, cJSON_GetArrayItem(cases, 1), 4);
    assert_int_equal(f.same, f.steps);
    qp_engine_close(engine);
    /* The fast kernels may choose another token only where two are nearly as likely. */
    engine = open_default("operators");
    size_t steps = 0, same = 0;
    cJSON_ArrayForEach(item, cases)
    {
        f = follow_golden(engine, item, 24);
        assert_true(f.largest_gap <= FAST_TOLERANCE);
        steps += f.steps;
        same += f.same;
    }
    if (same * 100 < steps * 95) fail_msg("%zu of %zu tokens are the same", same, steps);
    qp_engine_close(engine);
}

static int free_golden(void **state)
{
    (void)state;
    cJSON_Delete(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_same_tokens),
        cmocka_unit_test(reference_logits_are_those_of_transformers),
        cmocka_unit_test(fast_logits_are_near),
        cmocka_unit_test(greedy_text_is_that_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, free_golden);
}
