/* Measuring this machine, and comparing the strategies: files that can be loaded, tables with
 * consistent figures. The figures themselves are not checked, because the machine may be busy. */
#include "gpu_test.h"
#include "test.h"

#include "base/json.h"
#include "inspect/compare.h"
#include "inspect/measure.h"
#include "schedule/cost.h"
#include "inspect/schedule_print.h"

#include <unistd.h>

static char path[256];
static const dtype types[] = {DTYPE_BF16, DTYPE_Q8_0};

static const measure_options usual_measure = {
    .threads = 2, .types = "BF16, q8_0", .large = "tiny", .seconds = 1e-3, .read_bytes = 16 << 20};

static int measure_tiny(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    snprintf(path, sizeof path, "%s/quipu-test-%ld/costs/cpu-2.txt", P_tmpdir, (long)getpid());
    measure_options options = usual_measure;
    options.path = path;
    assert_ok(measure_costs(&options, &text, &error));
    static const char *const parts[] = {"2 workers", "a signal", "linear", "BF16", "Q8_0", "kept"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_non_null(strstr(strbuf_text(&text), parts[i]));
    strbuf_free(&text);
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    unlink(path);
    for (char *slash = strrchr(path, '/'); slash && strstr(path, "quipu-test");
         slash = strrchr(path, '/')) {
        *slash = '\0';
        rmdir(path);
    }
    return 0;
}

static void test_what_was_measured_is_loaded(void **state)
{
    (void)state;
    qp_error error;
    cost_table table;
    assert_ok(cost_load(path, &(cost_origin){.workers = 2}, &table, &error));
    assert_true(table.limits.bytes_per_second > 1e8 && table.limits.flops_per_second > 1e8);
    assert_true(table.limits.signal_ns > 0 && table.n_reads > 0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const cost_curve *curve = cost_find(&table, OP_LINEAR, types[i]);
        assert_non_null(curve);
        assert_true(curve->n_points >= 3 && curve->pass_bytes > 1e5);
        for (int p = 0; p < curve->n_points; p++)
            assert_true(curve->points[p].alone > 0 && curve->points[p].alone <= 1);
    }
    assert_null(cost_find(&table, OP_LINEAR, DTYPE_Q4_0));
    assert_non_null(cost_find(&table, OP_RMS_NORM, DTYPE_F32));
}

static void test_what_is_not_of_this_machine_is_refused(void **state)
{
    (void)state;
    qp_error error = {0};
    cost_table table;
    assert_int_equal(cost_load(path, &(cost_origin){.workers = 3}, &table, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "2 workers"));
    assert_int_equal(cost_load(path, &(cost_origin){"cuda", "NVIDIA H200", 2}, &table, &error),
                     QP_FORMAT);
    assert_non_null(strstr(error.message, "another machine"));
    assert_int_equal(cost_load("/nonexistent/costs", &(cost_origin){.workers = 2}, &table, &error),
                     QP_IO);
    assert_int_equal(table.n_curves, 0);
}

static void test_schedules_tell_where_their_costs_are_from(void **state)
{
    (void)state;
    qp_error error;
    schedule_print_options options = {.model = "synthetic:tiny:BF16",
                                      .workers = 2,
                                      .setting = "latency",
                                      .assignment = "rr",
                                      .costs = path};
    for (int i = 0; i < 4; i++) {
        static const char *const origins[] = {"measured, ", "guessed", "as given", "guessed"};
        strbuf text = {0};
        if (i == 1) options.workers = 3; /* none were measured */
        if (i == 2) options.signal_ns = 5;
        if (i == 3) {
            options.signal_ns = 0;
            options.costs = NULL;
        }
        assert_ok(schedule_print(&options, &text, &error));
        assert_non_null(strstr(strbuf_text(&text), origins[i]));
        strbuf_free(&text);
    }
}

static double number(const cJSON *json, const char *key)
{
    double value = -1;
    qp_error error;
    assert_ok(json_get_double(json, key, "the comparison", &value, &error));
    return value;
}

static cJSON *compare(compare_options options)
{
    qp_error error;
    strbuf text = {0};
    cJSON *json;
    options.json = true;
    assert_ok(schedule_compare(&options, &text, &error));
    assert_ok(json_parse(strbuf_text(&text), text.length, "the comparison", &json, &error));
    strbuf_free(&text);
    return json;
}

static const compare_options usual = {
    .model = "synthetic:tiny:BF16", .threads = 2, .context = 64, .chunk = 48, .rounds = 3};

static void check_side(const cJSON *side, double least)
{
    assert_non_null(side);
    assert_true(number(side, "ns") >= least);
    assert_true(number(side, "balance") >= 1 && number(side, "balance") <= 2 + 1e-9);
    assert_true(number(side, "waiting_ns") >= 0);
    assert_true(number(side, "waiting_ns") <= 2 * number(side, "ns"));
}

static void test_five_strategies_in_both_settings(void **state)
{
    (void)state;
    static const char *const names[] = {"rr", "zz", "wave", "dag", "pool"};
    compare_options options = usual;
    options.costs = path;
    cJSON *json = compare(options);
    assert_true(cJSON_IsTrue(json_get(json, "measured_costs")));
    const cJSON *settings = json_get(json, "settings"), *setting, *item;
    assert_int_equal(cJSON_GetArraySize(settings), 2);
    cJSON_ArrayForEach(setting, settings)
    {
        int i = 0;
        bool latency = setting == cJSON_GetArrayItem(settings, 0);
        assert_true(number(setting, "tokens") == (latency ? 1 : 48));
        assert_true(number(setting, "context") == (latency ? 64 : 48));
        assert_true(number(setting, "rounds") == 3);
        assert_true(cJSON_IsBool(json_get(setting, "busy")));
        cJSON_ArrayForEach(item, json_get(setting, "strategies"))
        {
            assert_string_equal(json_get(item, "assign")->valuestring, names[i++]);
            check_side(json_get(item, "predicted"), number(item, "critical_path_ns") - 1);
            check_side(json_get(item, "measured"), 1);
            assert_true(number(item, "median_ns") >= number(json_get(item, "measured"), "ns"));
            assert_true(number(item, "undisturbed_ns") > 0);
        }
        assert_int_equal(i, 5);
    }
    cJSON_Delete(json);
}

static void test_one_setting_and_guesses(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    compare_options options = usual;
    options.throughput = true;
    cJSON *json = compare(options);
    assert_true(cJSON_IsFalse(json_get(json, "measured_costs")));
    assert_int_equal(cJSON_GetArraySize(json_get(json, "settings")), 1);
    cJSON_Delete(json);
    options.costs = "/nonexistent/costs";
    assert_ok(schedule_compare(&options, &text, &error));
    static const char *const parts[] = {"throughput, 2 workers, 48 tokens", "\npool ", "guessed",
                                        "/nonexistent/costs"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_non_null(strstr(strbuf_text(&text), parts[i]));
    strbuf_free(&text);
}

/* A saved schedule runs beside the strategies, in its own setting and with its own workers. */
static void test_a_saved_schedule_is_compared(void **state)
{
    (void)state;
    qp_error error;
    strbuf text = {0};
    char saved[300];
    snprintf(saved, sizeof saved, "%s-sched", path);
    const schedule_print_options made = {.model = usual.model,
                                         .workers = 3,
                                         .setting = "throughput",
                                         .assignment = "dag",
                                         .context = 64,
                                         .chunk = 48,
                                         .save = saved};
    assert_ok(schedule_print(&made, &text, &error));
    compare_options options = usual;
    options.load = saved;
    cJSON *json = compare(options);
    const cJSON *settings = json_get(json, "settings");
    assert_int_equal(cJSON_GetArraySize(settings), 1);
    assert_string_equal(json_get(settings->child, "setting")->valuestring, "throughput");
    assert_int_equal(number(settings->child, "workers"), 3);
    const cJSON *strategies = json_get(settings->child, "strategies");
    assert_int_equal(cJSON_GetArraySize(strategies), 6);
    const cJSON *loaded = cJSON_GetArrayItem(strategies, 5);
    assert_string_equal(json_get(loaded, "assign")->valuestring, "dag");
    assert_string_equal(json_get(loaded, "file")->valuestring, saved);
    check_side(json_get(loaded, "predicted"), number(loaded, "critical_path_ns") - 1);
    assert_true(number(json_get(loaded, "measured"), "ns") > 0);
    cJSON_Delete(json);
    options.context = 128; /* of no matter to a schedule */
    assert_ok(schedule_compare(&options, &text, &error));
    options.model = "golden/models/qwen3.gguf";
    assert_int_equal(schedule_compare(&options, &text, &error), QP_FORMAT);
    options.device = "cuda";
    assert_int_equal(schedule_compare(&options, &text, &error), QP_INVALID);
    unlink(saved);
    strbuf_free(&text);
}

static void test_what_cannot_be_is_refused(void **state)
{
    (void)state;
    const volatile int cancel = 1;
    qp_error error = {0};
    strbuf text = {0};
    compare_options options = usual;
    options.cancel = &cancel;
    assert_int_equal(schedule_compare(&options, &text, &error), QP_CANCELLED);
    options.model = "/nonexistent/model.gguf";
    assert_int_equal(schedule_compare(&options, &text, &error), QP_IO);
    measure_options measured = usual_measure;
    measured.path = "/dev/null/costs";
    assert_int_equal(measure_costs(&measured, &text, &error), QP_IO);
    measured.path = path;
    measured.cancel = &cancel;
    assert_int_equal(measure_costs(&measured, &text, &error), QP_CANCELLED);
    measured.large = "no-such-preset";
    assert_int_equal(measure_costs(&measured, &text, &error), QP_INVALID);
    measured.large = "tiny";
    measured.types = "BF16,Q9_0";
    assert_int_equal(measure_costs(&measured, &text, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "\"Q9_0\""));
    measured.types = "BF16";
    measured.threads = 5000;
    assert_int_equal(measure_costs(&measured, &text, &error), QP_INVALID);
    strbuf_free(&text);
}

/* The same of a GPU's megakernel: what was measured there is what the strategies are predicted
 * from. */
static void test_a_gpu_is_measured_and_compared(void **state)
{
    (void)state;
    require_gpu();
    char costs[300];
    qp_error error;
    strbuf text = {0};
    cost_table table;
    cuda_device device;
    assert_ok(cuda_device_probe(&device, &error));
    const int blocks = device.n_multiprocessors;
    snprintf(costs, sizeof costs, "%s-cuda", path);
    const measure_options measured = {.device = "cuda",
                                      .threads = blocks,
                                      .types = "BF16",
                                      .large = "smollm2-135m",
                                      .path = costs};
    assert_ok(measure_costs(&measured, &text, &error));
    assert_non_null(strstr(strbuf_text(&text), "norm_mlp"));
    strbuf_free(&text);
    assert_ok(cost_load(costs, &(cost_origin){"cuda", device.name, blocks}, &table, &error));
    const cost_curve *mlp = cost_find(&table, OP_NORM_MLP, DTYPE_BF16);
    assert_true(mlp && mlp->signal_ns > 0 && mlp->points[0].ns_per_byte > 0);
    compare_options options = usual;
    options.device = "cuda";
    options.machine = device.name;
    options.threads = blocks;
    options.costs = costs;
    cJSON *json = compare(options);
    assert_true(cJSON_IsTrue(json_get(json, "measured_costs")));
    const cJSON *settings = json_get(json, "settings"), *item;
    assert_int_equal(cJSON_GetArraySize(settings), 1);
    assert_int_equal(number(settings->child, "workers"), blocks);
    assert_int_equal(cJSON_GetArraySize(json_get(settings->child, "strategies")), 5);
    cJSON_ArrayForEach(item, json_get(settings->child, "strategies"))
    {
        assert_true(number(json_get(item, "predicted"), "ns") > 0);
        assert_true(number(json_get(item, "measured"), "ns") > 0);
    }
    cJSON_Delete(json);
    unlink(costs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_measured_is_loaded),
        cmocka_unit_test(test_what_is_not_of_this_machine_is_refused),
        cmocka_unit_test(test_schedules_tell_where_their_costs_are_from),
        cmocka_unit_test(test_five_strategies_in_both_settings),
        cmocka_unit_test(test_one_setting_and_guesses),
        cmocka_unit_test(test_a_saved_schedule_is_compared),
        cmocka_unit_test(test_what_cannot_be_is_refused),
        cmocka_unit_test(test_a_gpu_is_measured_and_compared),
    };
    return cmocka_run_group_tests(tests, measure_tiny, remove_file);
}
