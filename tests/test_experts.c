/* Mixtures of experts: numbers and tensors that do not fit are refused by name, and a token's
 * logits have the same bits whatever the other tokens, the workers and the schedule are.
 */
#include "config_test.h"
#include "engine_test.h"
#include "model/config_read.h"
#include "model/model.h"
#include "model_files.h"

#include <math.h>

static qp_error error;

/* ---- Numbers -------------------------------------------------------------------------------- */

#define QWEN                                                                                       \
    "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"intermediate_size\":null,"                      \
    "\"moe_intermediate_size\":24,"

static qp_status read_config(const char *changes, model_config *out)
{
    arena arena = {0};
    cJSON *json = config_with(changes);
    qp_status status = config_from_json(json, "here/config.json", &arena, out, &error);
    cJSON_Delete(json);
    arena_free(&arena);
    return status;
}

static void numbers_are_read(void **state)
{
    (void)state;
    model_config c;
    assert_ok(read_config("{" QWEN "\"num_experts\":6,\"num_experts_per_tok\":2}", &c));
    assert_int_equal(c.n_experts, 6);
    assert_int_equal(c.n_experts_used, 2);
    assert_int_equal(c.intermediate_size, 24);
    assert_false(c.experts_normalised); /* as in transformers */
    assert_ok(read_config("{" QWEN "\"num_local_experts\":6,\"num_experts_per_tok\":2,"
                          "\"norm_topk_prob\":true}",
                          &c));
    assert_true(c.experts_normalised);
    assert_ok(read_config("{\"architectures\":[\"MixtralForCausalLM\"],\"num_local_experts\":3,"
                          "\"num_experts_per_tok\":3}",
                          &c));
    assert_true(c.experts_normalised);
    assert_int_equal(c.intermediate_size, 48);
    assert_ok(read_config("{\"architectures\":[\"OlmoeForCausalLM\"],\"num_experts\":4,"
                          "\"num_experts_per_tok\":2}",
                          &c));
    assert_true(c.norms_span_heads && !c.experts_normalised);
}

static void wrong_numbers_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *changes;
        const char *parts[2];
    } cases[] = {
        {"{" QWEN "\"num_experts_per_tok\":2}", {"\"num_experts\"", "missing"}},
        {"{" QWEN "\"num_experts\":6}", {"\"num_experts_per_tok\"", "missing"}},
        {"{" QWEN "\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":null}",
         {"\"moe_intermediate_size\"", "missing"}},
        {"{" QWEN "\"num_experts\":0,\"num_experts_per_tok\":2}", {"number of experts", "found 0"}},
        {"{" QWEN "\"num_experts\":9999999,\"num_experts_per_tok\":2}",
         {"number of experts", "found 9999999"}},
        {"{" QWEN "\"num_experts\":6,\"num_experts_per_tok\":7}", {"1 to 6 of 6", "found 7"}},
        {"{" QWEN "\"num_experts\":6,\"num_experts_per_tok\":0}", {"1 to 6 of 6", "found 0"}},
        {"{" QWEN "\"num_experts\":6,\"num_experts_per_tok\":2,\"mlp_only_layers\":[0]}",
         {"\"mlp_only_layers\"", "equal layers"}},
        {"{" QWEN "\"num_experts\":6,\"num_experts_per_tok\":2,\"decoder_sparse_step\":2}",
         {"\"decoder_sparse_step\"", "equal layers"}},
        {"{\"num_experts\":8}", {"\"num_experts\"", "family llama"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config config;
        memset(&error, 0, sizeof error);
        if (read_config(cases[i].changes, &config) == QP_OK ||
            !strstr(error.message, cases[i].parts[0]) || !strstr(error.message, cases[i].parts[1]))
            fail_msg("%s: \"%s\"", cases[i].changes, error.message);
    }
}

/* ---- Tensors -------------------------------------------------------------------------------- */

enum { EXPERTS = 3, MAX_TENSORS = 32 };

typedef struct tensor_list {
    file_tensor of[MAX_TENSORS];
    size_t count;
} tensor_list;

static file_tensor *add(tensor_list *list, const char *name, int64_t rows, int64_t columns,
                        float fill)
{
    file_tensor *t = &list->of[list->count++];
    *t = (file_tensor){.rank = columns ? 2 : 1, .shape = {rows, columns}, .fill = fill};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static file_tensor *named(tensor_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->of[i].name, name) == 0) return &list->of[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Experts whose weights count up through all three. */
static tensor_list mixture(void)
{
    tensor_list list = {.count = 0};
    char name[96];
    add(&list, "model.embed_tokens.weight", 11, 32, 0);
    add(&list, "model.layers.0.input_layernorm.weight", 32, 0, 1);
    add(&list, "model.layers.0.self_attn.q_proj.weight", 32, 32, 0);
    add(&list, "model.layers.0.self_attn.k_proj.weight", 16, 32, 0);
    add(&list, "model.layers.0.self_attn.v_proj.weight", 16, 32, 0);
    add(&list, "model.layers.0.self_attn.o_proj.weight", 32, 32, 0);
    add(&list, "model.layers.0.post_attention_layernorm.weight", 32, 0, 1);
    add(&list, "model.layers.0.block_sparse_moe.gate.weight", EXPERTS, 32, 0);
    for (int e = 0; e < EXPERTS; e++)
        for (int w = 1; w <= 3; w++) {
            snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.w%d.weight", e,
                     w);
            add(&list, name, w == 2 ? 32 : 48, w == 2 ? 48 : 32, (float)(e * 48 * 32))->step = 1;
        }
    add(&list, "model.norm.weight", 32, 0, 1);
    add(&list, "lm_head.weight", 11, 32, 0);
    return list;
}

static qp_status open_list(const tensor_list *list, bool sizes_only, model **out)
{
    char folder[64], *text;
    folder_make(folder);
    cJSON *json = config_with("{\"architectures\":[\"MixtralForCausalLM\"],"
                              "\"num_local_experts\":3,\"num_experts_per_tok\":2}");
    text = cJSON_PrintUnformatted(json);
    folder_write_text(folder, "config.json", text);
    cJSON_free(text);
    cJSON_Delete(json);
    folder_write_safetensors(folder, list->of, list->count);
    *out = NULL;
    memset(&error, 0, sizeof error);
    qp_status status = model_open(folder, &(model_options){.sizes_only = sizes_only}, out, &error);
    folder_remove(folder);
    return status;
}

/* The experts' tensors make one matrix, also where it is read by rows. */
static void experts_are_joined(void **state)
{
    (void)state;
    const tensor_list list = mixture();
    for (int sizes_only = 0; sizes_only < 2; sizes_only++) {
        model *m;
        float rows[96 * 32];
        assert_ok(open_list(&list, sizes_only, &m));
        const tensor *up = &model_get_weight(m, WEIGHT_UP_EXPERTS, 0)->weight;
        assert_int_equal(up->rank, 2);
        assert_int_equal(up->shape[0], EXPERTS * 48);
        assert_int_equal(up->data == NULL, sizes_only);
        model_read_rows(m, WEIGHT_UP_EXPERTS, 0, false, 40, 96, rows);
        for (int i = 0; i < 96 * 32; i++)
            assert_true(rows[i] == (float)(40 * 32 + i));
        assert_true(model_read_bytes(m) < model_weight_bytes(m));
        model_close(m);
    }
}

static void expect_refusal(const tensor_list *list, const char *a, const char *b)
{
    model *m;
    if (open_list(list, false, &m) == QP_OK || !strstr(error.message, a) ||
        !strstr(error.message, b))
        fail_msg("%s, %s: \"%s\"", a, b, error.message);
}

static void wrong_tensors_are_named(void **state)
{
    (void)state;
    static const char router[] = "model.layers.0.block_sparse_moe.gate.weight",
                      last[] = "model.layers.0.block_sparse_moe.experts.2.w3.weight",
                      fourth[] = "model.layers.0.block_sparse_moe.experts.3.w1.weight";
    tensor_list list = mixture();
    *named(&list, last) = list.of[--list.count]; /* one expert of three lacks a matrix */
    expect_refusal(&list, last, "missing");
    list = mixture();
    named(&list, last)->shape[0]--;
    expect_refusal(&list, last, "as that of expert 0");
    list = mixture();
    add(&list, fourth, 48, 32, 0);
    expect_refusal(&list, fourth, "is not one that");
    list = mixture();
    named(&list, router)->shape[0]++;
    expect_refusal(&list, router, "must be F32 [3, 32]");
    list = mixture();
    named(&list, router)->fill = NAN;
    expect_refusal(&list, router, "must be finite");
    list = mixture();
    for (int e = 0; e < EXPERTS; e++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.w2.weight", e);
        named(&list, name)->shape[1]++;
    }
    expect_refusal(&list, "block_sparse_moe.experts.*.w2.weight", "must be F32 [3, 32, 48]");
}

/* ---- Bits ----------------------------------------------------------------------------------- */

enum { TOKENS = 40 };

static float *logits_of(const char *model, const char *exec, int threads, size_t chunk, bool fuse)
{
    qp_engine *engine = open_engine((qp_engine_options){
        .model = model, .exec = exec, .threads = threads, .context = 64, .fuse = fuse});
    const size_t vocab = (size_t)qp_engine_get_info(engine)->vocab_size;
    float *all = calloc(TOKENS * vocab, sizeof *all);
    qp_session *session = open_session(engine);
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 5) % 500;
    for (size_t at = 0, n; at < TOKENS; at += n) {
        n = TOKENS - at < chunk ? TOKENS - at : chunk;
        float *rows = eval_rows(engine, session, ids + at, n);
        memcpy(all + at * vocab, rows, n * vocab * sizeof *rows);
        free(rows);
    }
    qp_session_close(session);
    qp_engine_close(engine);
    return all;
}

static void tokens_have_the_same_bits_in_every_batch(void **state)
{
    (void)state;
    static const char *const models[] = {"synthetic:tiny-olmoe:Q4_K+Q6_K",
                                         "synthetic:tiny-qwen3moe:Q8_0",
                                         "synthetic:tiny-mixtral:BF16", "synthetic:tiny-olmoe:F32"};
    static const struct {
        const char *exec;
        int threads;
        size_t chunk;
        bool fuse;
    } ways[] = {{"threads", 3, TOKENS, false},
                {"threads", 2, 1, false},
                {"threads", 2, 5, true},
                {"operators", 2, 7, false}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        float *whole = logits_of(models[i], "threads", 1, TOKENS, false);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            float *other =
                logits_of(models[i], ways[w].exec, ways[w].threads, ways[w].chunk, ways[w].fuse);
            if (memcmp(whole, other, TOKENS * 512 * sizeof *other) != 0)
                fail_msg("%s: %s with %d threads in chunks of %zu gives other bits", models[i],
                         ways[w].exec, ways[w].threads, ways[w].chunk);
            free(other);
        }
        free(whole);
    }
}

static void schedules_give_what_references_give(void **state)
{
    (void)state;
    float *reference = logits_of("synthetic:tiny-qwen3moe:F32", "reference", 1, TOKENS, false);
    float *serial = logits_of("synthetic:tiny-qwen3moe:F32", "serial", 3, 16, false);
    assert_memory_equal(reference, serial, TOKENS * 512 * sizeof *serial);
    free(reference);
    free(serial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(wrong_numbers_are_named),
        cmocka_unit_test(experts_are_joined),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(tokens_have_the_same_bits_in_every_batch),
        cmocka_unit_test(schedules_give_what_references_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
