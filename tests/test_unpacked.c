/* Engines whose first passes read the weights from the model's file: their logits have the bits of
 * packed weights, and after some passes all weights are packed.
 */
#include "engine_test.h"

#include "engine/engine.h"
#include "inspect/part.h"
#include "vm/machine.h"

#include <unistd.h>

enum { THREADS = 2, FEW = 5, MANY = 70, MOST_PASSES = 200 };
static qp_error error;

static qp_engine *open_model(const char *path, bool at_once, const char *cache)
{
    const qp_engine_options options = {.size = sizeof options,
                                       .model = path,
                                       .threads = THREADS,
                                       .cache_packed = cache,
                                       .context = 512};
    const pass_part part = {.at_once = at_once};
    qp_engine *engine = NULL;
    assert_ok(part_open(&options, &part, &engine, &error));
    return engine;
}

static bool has_packed(const qp_engine *engine)
{
    return machine_packing_ns(engine_memory(engine)) > 0;
}

/* Passes of these tokens give the same logits in both engines. */
static void compare(qp_engine *packed, qp_session *p, qp_engine *unpacked, qp_session *u, size_t n)
{
    int32_t ids[MANY];
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 37 % 64);
    float *expected = eval_rows(packed, p, ids, n), *found = eval_rows(unpacked, u, ids, n);
    const size_t vocab_size = (size_t)qp_engine_get_info(packed)->vocab_size;
    assert_memory_equal(found, expected, n * vocab_size * sizeof *found);
    free(expected);
    free(found);
}

static void compare_passes(const char *path, const size_t *counts, int n_passes)
{
    qp_engine *packed = open_model(path, false, NULL), *unpacked = open_model(path, true, NULL);
    qp_session *p = open_session(packed), *u = open_session(unpacked);
    for (int i = 0; i < n_passes; i++) {
        compare(packed, p, unpacked, u, counts[i]);
        if (i == 0) assert_true(has_packed(unpacked) == (counts[0] > FEW));
    }
    assert_false(has_packed(packed));
    for (int i = 0; i < MOST_PASSES && !has_packed(unpacked); i++)
        compare(packed, p, unpacked, u, 1);
    assert_true(has_packed(unpacked));
    qp_session_close(p);
    qp_session_close(u);
    qp_engine_close(packed);
    qp_engine_close(unpacked);
}

static void write_model(const char *type, char path[64])
{
    char source[64];
    snprintf(path, 64, "/tmp/quipu-unpacked-%s-%d.gguf", type, (int)getpid());
    snprintf(source, sizeof source, "synthetic:tiny:%s", type);
    const qp_convert_options options = {.size = sizeof options, .model = source, .out = path};
    assert_ok(qp_convert(&options, &error));
}

static void test_bits_are_those_of_packed_weights(void **state)
{
    (void)state;
    static const char *const types[] = {"F32",  "F16",  "BF16", "Q8_0",
                                        "Q4_0", "Q5_1", "Q4_K", "Q6_K"};
    static const size_t few_first[] = {1, FEW, MANY, 1}, many_first[] = {MANY, 1};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char path[64];
        write_model(types[i], path);
        compare_passes(path, few_first, 4);
        compare_passes(path, many_first, 2);
        unlink(path);
    }
}

static void test_models_of_other_shapes(void **state)
{
    (void)state;
    static const char *const models[] = {"golden/models/llama-tied-gqa3",
                                         "golden/models/llama-tied-gqa3.gguf"};
    static const size_t counts[] = {1, FEW, 1};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        compare_passes(models[i], counts, 3);
}

/* Another schedule finds what is not packed yet, and packed weights that are kept in a file need no
 * passes. */
static void test_schedules_and_kept_files(void **state)
{
    (void)state;
    char path[64], cache[] = "/tmp/quipu-unpacked-XXXXXX", command[64];
    assert_non_null(mkdtemp(cache));
    write_model("Q4_0", path);
    qp_engine *packed = open_model(path, true, cache), *unpacked = open_model(path, true, NULL);
    qp_session *p = open_session(packed), *u = open_session(unpacked);
    compare(packed, p, unpacked, u, 1);
    const qp_schedule_options wave = {.size = sizeof wave, .assignment = "wave"};
    assert_ok(qp_engine_reschedule(unpacked, &wave, &error));
    for (int i = 0; i < MOST_PASSES && !has_packed(unpacked); i++)
        compare(packed, p, unpacked, u, FEW);
    assert_ok(qp_engine_reschedule(unpacked, NULL, &error));
    compare(packed, p, unpacked, u, FEW);
    assert_false(has_packed(packed));
    qp_session_close(p);
    qp_session_close(u);
    qp_engine_close(packed);
    qp_engine_close(unpacked);
    unlink(path);
    snprintf(command, sizeof command, "rm -r %s", cache);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_packed_weights),
        cmocka_unit_test(test_models_of_other_shapes),
        cmocka_unit_test(test_schedules_and_kept_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
