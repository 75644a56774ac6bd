/* Mixtures of experts on the GPU: which kernels run them, which needs no GPU; and their logits,
 * compared with the reference's. */
#include "engine_test.h"
#include "gpu_test.h"

#include "inspect/pass_launches.h"
#include "lower/lower.h"
#include "vm/cuda/launch_list.h"

#include <math.h>

static qp_error error;

/* ---- Launches ------------------------------------------------------------------------------- */

/* How many launches of a pass are of kernels whose names begin so. */
static int count_launches(const launch_list *list, const char *name)
{
    int n = 0;
    for (int r = 0; r < list->recording.n_records; r++)
        n += strncmp(launch_kernel_name(&list->recording.records[r]), name, strlen(name)) == 0;
    return n;
}

/* A pass of so many tokens has a launch of each kernel in every layer; of prompts in all but the
 * last, which only one row leaves. */
static void assert_launches(const char *name, int64_t tokens, const char *const kernels[])
{
    model *model;
    pass_launches pass;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open(name, &sizes_only, &model, &error));
    plan_options options = plan_default_options(model_get_config(model));
    options.max_tokens = tokens;
    options.context = 512;
    assert_ok(pass_launches_make(model, &options, tokens, 1, "sm_90", &pass, &error));
    const int n_layers = (int)pass.program.config.n_layers - (tokens > 64);
    for (int i = 0; kernels[i]; i++)
        if (count_launches(&pass.list, kernels[i]) != n_layers)
            fail_msg("%s: %d launches of %s in %d layers of %lld tokens", name,
                     count_launches(&pass.list, kernels[i]), kernels[i], n_layers,
                     (long long)tokens);
    pass_launches_free(&pass);
    model_close(model);
}

static void few_tokens_stream_weights(void **state)
{
    (void)state;
    assert_launches(
        "synthetic:qwen3-30b-a3b:BF16", 1,
        (const char *[]){"run_norm_route", "run_experts_up_BF16", "run_experts_down_BF16", NULL});
    assert_launches("synthetic:gpt-oss-20b:MXFP4+BF16", 8,
                    (const char *[]){"run_norm_route", "run_experts_up_MXFP4",
                                     "run_experts_down_MXFP4", "run_attention_sinks", NULL});
    assert_launches(
        "synthetic:olmoe-1b-7b:Q4_K+Q6_K", 2,
        (const char *[]){"run_norm_route", "run_experts_up_Q4_K", "run_experts_down_", NULL});
}

static void many_tokens_are_grouped_once(void **state)
{
    (void)state;
    assert_launches("synthetic:qwen3-30b-a3b:BF16", 2048,
                    (const char *[]){"run_route", "run_experts_group",
                                     "run_experts_tiles_up_BF16_128",
                                     "run_experts_tiles_down_BF16_128", "run_experts_sum", NULL});
    assert_launches("synthetic:gpt-oss-20b:MXFP4+BF16", 16,
                    (const char *[]){"run_experts_group", "run_experts_tiles_up_MXFP4_16",
                                     "run_experts_tiles_down_MXFP4_16", NULL});
}

/* Types without kernels of their own. */
static void other_types_are_decoded(void **state)
{
    (void)state;
    const char *const tiles[] = {"run_experts_tiles_up_COUNT_16", "run_experts_tiles_down_COUNT_16",
                                 NULL};
    model *model;
    pass_launches pass;
    model_options sizes_only = {.sizes_only = true};
    assert_ok(model_open("synthetic:tiny-olmoe:Q5_1", &sizes_only, &model, &error));
    plan_options options = plan_default_options(model_get_config(model));
    assert_ok(pass_launches_make(model, &options, 1, 1, "sm_90", &pass, &error));
    assert_int_equal(count_launches(&pass.list, "run_experts_plain"),
                     2 * pass.program.config.n_layers);
    pass_launches_free(&pass);
    model_close(model);
    assert_launches("synthetic:tiny-olmoe:Q5_1", 12, tiles);
}

/* ---- Logits --------------------------------------------------------------------------------- */

enum { PROMPT = 40, STEPS = 6, TOKENS = PROMPT + STEPS };

static const char *const models[] = {
    "golden/models/qwen3moe",
    "golden/models/mixtral",
    "golden/models/olmoe",
    "golden/models/gpt-oss",
    "golden/models/gpt-oss-mxfp4",
    "synthetic:tiny-qwen3moe:BF16",
    "synthetic:tiny-olmoe:Q4_K+Q6_K",
    "synthetic:tiny-mixtral:Q8_0",
    "synthetic:tiny-mixtral:Q4_0",
    "synthetic:tiny-gpt-oss:MXFP4+BF16",
    "synthetic:tiny-olmoe:Q5_1",
    "synthetic:tiny-qwen3moe:F16",
};

/* Logits after each token: of a prompt together, then of tokens one by one. */
static float *logits_of(const char *model, const char *device, const char *exec, size_t *vocab)
{
    int32_t ids[TOKENS];
    qp_engine *engine =
        open_engine((qp_engine_options){.model = model,
                                        .device = device,
                                        .exec = exec,
                                        .context = TOKENS,
                                        .max_outputs = PROMPT}); /* else a pass has one token */
    *vocab = (size_t)qp_engine_get_info(engine)->vocab_size;
    for (size_t i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)((i * 37 + 5) % *vocab);
    float *all = malloc(TOKENS * *vocab * sizeof *all);
    assert_non_null(all);
    qp_session *session = open_session(engine);
    for (size_t at = 0, n; at < TOKENS; at += n) {
        n = at < PROMPT ? PROMPT : 1;
        float *rows = eval_rows(engine, session, ids + at, n);
        memcpy(all + at * *vocab, rows, n * *vocab * sizeof *rows);
        free(rows);
    }
    qp_session_close(session);
    qp_engine_close(engine);
    return all;
}

static double difference(const float *a, const float *b, size_t n)
{
    double of = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        of += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)b[i] * b[i];
    }
    return sqrt(of / all);
}

/* Rounding x to BF16 may choose another expert where two are nearly as good; such a row differs as
 * a whole, so a few of them may. */
static void logits_are_those_of_the_reference(void **state)
{
    (void)state;
    enum { MAY_DIFFER = TOKENS / 10 };
    require_gpu();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        size_t vocab, far = 0;
        float *expected = logits_of(models[i], "cpu", "reference", &vocab);
        float *found = logits_of(models[i], "cuda", NULL, &vocab);
        double most = 0;
        for (size_t row = 0; row < TOKENS; row++) {
            const double d = difference(found + row * vocab, expected + row * vocab, vocab);
            if (!(d < 0.03)) far++;
            if (!(d <= most)) most = d;
        }
        print_message("%s: %zu rows of %d differ, at most by %.4f\n", models[i], far, (int)TOKENS,
                      most);
        if (far > MAY_DIFFER)
            fail_msg("%s: %zu rows of %d differ, one by %.4f", models[i], far, (int)TOKENS, most);
        free(expected);
        free(found);
    }
}

/* The order in which choices are grouped by expert is not always the same. */
static void runs_give_the_same_bits(void **state)
{
    (void)state;
    require_gpu();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        size_t vocab;
        float *first = logits_of(models[i], "cuda", NULL, &vocab);
        for (int run = 0; run < 2; run++) {
            float *again = logits_of(models[i], "cuda", NULL, &vocab);
            if (memcmp(first, again, TOKENS * vocab * sizeof *again) != 0)
                fail_msg("%s: another run gives other bits", models[i]);
            free(again);
        }
        free(first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_tokens_stream_weights),
        cmocka_unit_test(many_tokens_are_grouped_once),
        cmocka_unit_test(other_types_are_decoded),
        cmocka_unit_test(logits_are_those_of_the_reference),
        cmocka_unit_test(runs_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
