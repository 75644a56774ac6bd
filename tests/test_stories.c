/* A real trained model of 260,000 parameters, from the optional test data: logits of a float64
 * forward pass, texts of llama2.c, the perplexity that llama.cpp measures.
 */
#include "engine_test.h"

#include <cjson/cJSON.h>
#include <math.h>

enum { VOCAB = 512, STEPS = 200 };

static qp_error error;

/* test_data() with its result copied, so that several can be held. */
static const char *data_path(char path[4096], const char *name)
{
    const char *found = test_data(name);
    if (!found) return NULL;
    snprintf(path, 4096, "%s", found);
    return path;
}

static cJSON *read_json(const char *name)
{
    char path[4096];
    size_t bytes = 0;
    if (!data_path(path, name)) return NULL;
    char *text = read_whole(path, &bytes);
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    free(text);
    return json;
}

/* Logits after ids[0 .. t] against row t. */
static void check_logits(const char *model, const char *logits, const char *exec, double tolerance)
{
    char model_path[4096], logits_path[4096];
    char config[256];
    snprintf(config, sizeof config, "%s%s", model, strstr(model, "gguf") ? "" : "/config.json");
    require_data(test_data(config), model);
    require_data(data_path(logits_path, logits), logits);
    data_path(model_path, config);
    if (!strstr(model, "gguf")) *strrchr(model_path, '/') = '\0';
    cJSON *golden = read_json("stories260K/stories260K.greedy_ids.json");
    assert_non_null(golden);
    int32_t ids[STEPS + 1];
    int count = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, cJSON_GetObjectItem(golden, "greedy_ids"))
    {
        if (count <= STEPS) ids[count++] = id->valueint;
    }
    assert_true(count >= STEPS);
    size_t bytes = 0;
    float *want = read_whole(logits_path, &bytes);
    assert_int_equal(bytes, STEPS * VOCAB * sizeof *want);
    qp_engine *engine = open_engine((qp_engine_options){
        .model = model_path, .exec = exec, .kv_type = "F32", .context = 512, .max_outputs = 64});
    float *got = eval_fresh(engine, ids, STEPS);
    double worst = 0;
    for (int t = 0; t < STEPS; t++) {
        double most = 0, off = 0;
        int best = 0;
        for (int i = 0; i < VOCAB; i++) {
            off = fmax(off, fabs((double)got[t * VOCAB + i] - (double)want[t * VOCAB + i]));
            most = fmax(most, fabs((double)want[t * VOCAB + i]));
            if (got[t * VOCAB + i] > got[t * VOCAB + best]) best = i;
        }
        worst = fmax(worst, off / most);
        if (t + 1 < count && !strstr(logits, "bf16")) assert_int_equal(best, ids[t + 1]);
    }
    if (worst > tolerance) fail_msg("%s, %s: off by %.3g of the largest logit", model, exec, worst);
    free(want);
    free(got);
    cJSON_Delete(golden);
    qp_engine_close(engine);
}

static const char f32_gguf[] = "stories260K/stories260K-f32.gguf";
static const char f32_logits[] = "stories260K/stories260K.logits.f32";
static const char bf16_logits[] = "stories260K/stories260K.bf16weights.logits.f32";

static void gguf_logits(void **state)
{
    (void)state;
    check_logits(f32_gguf, f32_logits, "reference", 1e-5);
    check_logits(f32_gguf, f32_logits, "operators", 1e-5);
}

static void hugging_face_logits(void **state)
{
    (void)state;
    check_logits("stories260K/hf", f32_logits, "reference", 1e-5);
    check_logits("stories260K/hf", f32_logits, "operators", 1e-5);
}

static void bf16_logits_are_of_bf16_weights(void **state)
{
    (void)state;
    check_logits("stories260K/hf-bf16", bf16_logits, "reference", 1e-5);
    check_logits("stories260K/hf-bf16", bf16_logits, "operators", 1e-5);
}

static void f16_weights_are_near(void **state)
{
    (void)state;
    check_logits("stories260K/stories260K-f16.gguf", f32_logits, "operators", 5e-3);
}

/* The prompt of chunks, threads and neighbours on a trained model. */
static void chunks_do_not_show(void **state)
{
    (void)state;
    char path[4096];
    require_data(data_path(path, f32_gguf), f32_gguf);
    static const int64_t chunks[] = {512, 1, 7, 64};
    float *want = NULL;
    int32_t ids[150];
    for (int i = 0; i < 150; i++)
        ids[i] = (i * 37 + i * i) % VOCAB;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        qp_engine *engine = open_engine((qp_engine_options){.model = path,
                                                            .context = 512,
                                                            .chunk = chunks[i],
                                                            .max_outputs = 150,
                                                            .threads = 1 + (int)i % 3});
        float *got = eval_fresh(engine, ids, 150);
        if (!want) want = got;
        assert_memory_equal(got, want, 150 * VOCAB * sizeof *got);
        if (got != want) free(got);
        qp_engine_close(engine);
    }
    free(want);
}

typedef struct record {
    char text[4096];
    size_t length;
} record;

static qp_status on_token(void *context, int32_t token, const char *text, size_t length)
{
    (void)token;
    record *r = context;
    assert_true(r->length + length < sizeof r->text);
    memcpy(r->text + r->length, text, length);
    r->text[r->length += length] = '\0';
    return QP_OK;
}

/* Greedy text after a prompt; the prompt is part of *r, without the space before it. */
static void write_on(qp_engine *engine, const char *prompt, int64_t positions, record *r)
{
    qp_tokens tokens = {0};
    assert_ok(qp_tokenize(qp_engine_vocabulary(engine), prompt, strlen(prompt), QP_BOS_ALWAYS,
                          &tokens, &error));
    qp_sampling sampling = {.size = sizeof sampling};
    assert_int_equal(qp_sampling_defaults(engine, &sampling, NULL), QP_OK);
    assert_ok(qp_sampling_set(&sampling, QP_TEMPERATURE, 0, QP_FROM_REQUEST, &error));
    qp_session *session = open_session(engine);
    *r = (record){.length = strlen(prompt)};
    memcpy(r->text, prompt, r->length);
    qp_generate_options options = {.size = sizeof options,
                                   .prompt = tokens.data,
                                   .n_prompt = tokens.count,
                                   .sampling = &sampling,
                                   .max_tokens = positions - (int64_t)tokens.count + 1,
                                   .on_token = on_token,
                                   .context = r};
    assert_ok(qp_generate(session, &options, NULL, &error));
    qp_session_close(session);
    qp_tokens_free(&tokens);
}

/* llama2.c counts positions, so its text is at least as long as what that many steps give. */
static void texts_are_those_of_llama2_c(void **state)
{
    (void)state;
    char model[4096], path[4096];
    require_data(data_path(model, f32_gguf), f32_gguf);
    require_data(data_path(path, "stories260K/generations.jsonl"), "stories260K/generations.jsonl");
    size_t bytes = 0;
    char *lines = read_whole(path, &bytes), *rest = lines, *line;
    qp_engine *engine =
        open_engine((qp_engine_options){.model = model, .context = 512, .kv_type = "F32"});
    int compared = 0;
    while ((line = strtok_r(rest, "\n", &rest))) {
        cJSON *json = cJSON_Parse(line);
        assert_non_null(json);
        const char *prompt = cJSON_GetObjectItem(json, "prompt")->valuestring;
        const char *want = cJSON_GetObjectItem(json, "text")->valuestring;
        if (cJSON_GetObjectItem(json, "temperature")->valuedouble == 0) {
            record r;
            write_on(engine, prompt, cJSON_GetObjectItem(json, "steps")->valueint, &r);
            const char *got = r.text;
            while (!*prompt && *got == ' ') /* the text after BOS begins with a space */
                got++;
            size_t common = 0, length = strlen(want);
            while (length > 0 && want[length - 1] == '\n')
                length--;
            while (common < length && got[common] == want[common])
                common++;
            if (common < length)
                fail_msg("\"%s\" goes on with \"%.40s\" instead of \"%.40s\"", prompt, got + common,
                         want + common);
            compared++;
        }
        cJSON_Delete(json);
    }
    assert_int_equal(compared, 7);
    free(lines);
    qp_engine_close(engine);
}

static void greedy_texts_are_those_of_llama_cpp(void **state)
{
    (void)state;
    cJSON *golden = read_json("stories260K/llamacpp_reference.json");
    require_data(golden, "stories260K/llamacpp_reference.json");
    const cJSON *item;
    int compared = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden, "greedy_llama_simple"))
    {
        char name[128], path[4096];
        snprintf(name, sizeof name, "stories260K/%s.gguf",
                 cJSON_GetObjectItem(item, "model")->valuestring);
        require_data(data_path(path, name), name);
        qp_engine *engine = open_engine((qp_engine_options){.model = path});
        const char *want = cJSON_GetObjectItem(item, "text")->valuestring;
        if (strncmp(want, "<s> ", 4) == 0) want += 4;
        record r;
        write_on(engine, cJSON_GetObjectItem(item, "prompt")->valuestring, 130, &r);
        if (strncmp(r.text, want, strlen(want)) != 0)
            fail_msg("%s: \"%s\" instead of \"%s\"", name, r.text, want);
        compared++;
        qp_engine_close(engine);
    }
    assert_int_equal(compared, 6);
    cJSON_Delete(golden);
}

typedef struct score {
    const int32_t *next; /* of every scored row */
    double sum;
    size_t count;
} score;

static qp_status add_score(void *context, size_t input, size_t token, const float *logits)
{
    (void)input;
    score *s = context;
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < VOCAB; i++)
        most = fmax(most, (double)logits[i]);
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i] - most);
    s->sum += log(sum) + most - (double)logits[s->next[token]];
    s->count++;
    return QP_OK;
}

/* Chunks of 128 tokens, the first of each replaced by BOS; the second half but for its last token
 * predicts what follows. */
static double perplexity(const char *model, const char *text, size_t length)
{
    enum { N = 128 };
    qp_engine *engine = open_engine((qp_engine_options){.model = model, .max_outputs = N});
    qp_tokens tokens = {0};
    assert_ok(
        qp_tokenize(qp_engine_vocabulary(engine), text, length, QP_BOS_DEFAULT, &tokens, &error));
    qp_session *session = open_session(engine);
    score s = {0};
    for (size_t chunk = 0; chunk < tokens.count / N; chunk++) {
        int32_t *ids = tokens.data + chunk * N;
        int32_t replaced = ids[0];
        ids[0] = 1;
        s.next = ids + N / 2 + 1;
        qp_session_truncate(session, 0, NULL);
        const qp_input head = {session, ids, N / 2, false};
        const qp_input tail = {session, ids + N / 2, N / 2 - 1, true};
        assert_ok(qp_eval(engine, &head, 1, NULL, NULL, NULL, &error));
        assert_ok(qp_eval(engine, &tail, 1, add_score, &s, NULL, &error));
        ids[0] = replaced;
    }
    qp_session_close(session);
    qp_tokens_free(&tokens);
    qp_engine_close(engine);
    return exp(s.sum / (double)s.count);
}

static void perplexity_is_that_of_llama_cpp(void **state)
{
    (void)state;
    cJSON *golden = read_json("stories260K/llamacpp_reference.json");
    require_data(golden, "stories260K/llamacpp_reference.json");
    char path[4096];
    require_data(data_path(path, "text/tinystories_sample.txt"), "text/tinystories_sample.txt");
    size_t length = 0;
    char *text = read_whole(path, &length);
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden, "perplexity"))
    {
        char name[128];
        snprintf(name, sizeof name, "stories260K/%s.gguf",
                 cJSON_GetObjectItem(item, "model")->valuestring);
        require_data(data_path(path, name), name);
        double got = perplexity(path, text, length);
        double want = cJSON_GetObjectItem(item, "ppl")->valuedouble;
        if (!(fabs(got / want - 1) < 1e-3)) fail_msg("%s: %.4f instead of %.4f", name, got, want);
    }
    free(text);
    cJSON_Delete(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_logits),
        cmocka_unit_test(hugging_face_logits),
        cmocka_unit_test(bf16_logits_are_of_bf16_weights),
        cmocka_unit_test(f16_weights_are_near),
        cmocka_unit_test(chunks_do_not_show),
        cmocka_unit_test(texts_are_those_of_llama2_c),
        cmocka_unit_test(greedy_texts_are_those_of_llama_cpp),
        cmocka_unit_test(perplexity_is_that_of_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
