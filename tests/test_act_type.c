/* Activations in BF16: logits near those of float32; the same bits on every machine of the CPU and
 * however a prompt is cut; and refusals, each with its reason.
 */
#include "engine_test.h"

#include <math.h>

enum { PROMPT = 41, CONTEXT = 96 };

static qp_error error;

/* 16-bit and float32 weights, and weights in blocks, whose products round the activations too. */
static const char *const models[] = {"synthetic:tiny:BF16", "synthetic:tiny:F32",
                                     "synthetic:tiny:Q8_0:3", "synthetic:tiny:Q4_K:3"};
enum { N_MODELS = sizeof models / sizeof *models };

static float *logits_of(const char *model, const char *act_type, const char *exec, int64_t chunk,
                        size_t *count)
{
    qp_engine *e = open_engine((qp_engine_options){.model = model,
                                                   .act_type = act_type,
                                                   .exec = exec,
                                                   .device = "cpu",
                                                   .context = CONTEXT,
                                                   .chunk = chunk,
                                                   .max_outputs = PROMPT,
                                                   .threads = 2});
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        ids[i] = i * 7 % (int32_t)qp_engine_get_info(e)->vocab_size;
    float *rows = eval_fresh(e, ids, PROMPT);
    *count = PROMPT * (size_t)qp_engine_get_info(e)->vocab_size;
    qp_engine_close(e);
    return rows;
}

static double distance(const float *rows, const float *expected, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)rows[i] - (double)expected[i], 2);
        norm += pow((double)expected[i], 2);
    }
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

static void logits_are_near_float32(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        size_t count;
        float *wide = logits_of(models[m], "F32", "operators", 64, &count);
        float *narrow = logits_of(models[m], "BF16", "operators", 64, &count);
        const double found = distance(narrow, wide, count);
        if (!(found > 1e-5 && found < 3e-2)) fail_msg("%s: they differ by %g", models[m], found);
        free(wide);
        free(narrow);
    }
}

static void bits_are_the_same(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        size_t count;
        float *expected = logits_of(models[m], "BF16", "operators", 64, &count);
        for (int64_t chunk = 1; chunk <= 64; chunk += 21) {
            float *found = logits_of(models[m], "BF16", "threads", chunk, &count);
            assert_memory_equal(found, expected, count * sizeof *found);
            free(found);
        }
        free(expected);
    }
}

static void assert_refused(qp_engine_options options, const char *why)
{
    qp_engine *engine = NULL;
    options.size = sizeof options;
    options.model = models[0];
    if (!options.act_type) options.act_type = "BF16";
    options.threads = 1;
    assert_int_not_equal(qp_engine_open(&options, &engine, &error), QP_OK);
    if (!strstr(error.message, why)) fail_msg("%s", error.message);
}

static void what_cannot_run_is_refused(void **state)
{
    (void)state;
    assert_refused((qp_engine_options){.act_type = "F16"}, "F32 or BF16, found \"F16\"");
    assert_refused((qp_engine_options){.fuse = true}, "exclude fused operators");
    assert_refused((qp_engine_options){.ranks = 2}, "exclude several ranks");
    assert_refused((qp_engine_options){.plan = "flashinfer"}, "plans other than paged");
    assert_refused((qp_engine_options){.exec = "cuda"}, "are for the CPU");
    assert_refused((qp_engine_options){.device = "cuda"}, "are for the CPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_float32),
        cmocka_unit_test(bits_are_the_same),
        cmocka_unit_test(what_cannot_run_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
