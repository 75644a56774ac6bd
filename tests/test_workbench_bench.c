/* Measuring kernels, and exchanging them with FlashInfer-Bench: tricks with the clock are detected,
 * and what is exported can be imported. */
#include "test.h"

#include "base/cpu.h"
#include "base/json.h"
#include "op/bench/bench.h"
#include "op/embedding/embedding.h"
#include "op/table.h"
#include "workbench/exchange.h"
#include "base/files.h"
#include "workbench/values.h"
#include "workbench/workbench.h"
#include "workbench/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static workbench_bench_options quick(const char *const *op)
{
    return (workbench_bench_options){.ops = op,
                                     .n_ops = 1,
                                     .workload = "llama-3.2-1b",
                                     .seed = 1,
                                     .features = cpu_features(0),
                                     .threads = 1,
                                     .rounds = 3,
                                     .timeout_ms = 120000,
                                     .format = WORKBENCH_JSON};
}

static cJSON *run_bench(const workbench_bench_options *options, int *n_wrong)
{
    qp_error error;
    strbuf out = {0};
    cJSON *tree;
    if (workbench_bench(options, &out, n_wrong, &error) != QP_OK) fail_msg("%s", error.message);
    assert_int_equal(json_parse(out.data, out.length, "bench", &tree, &error), QP_OK);
    strbuf_free(&out);
    return tree;
}

static void the_example_is_right_and_faster(void **state)
{
    (void)state;
    const char *op = "rms_norm";
    workbench_bench_options options = quick(&op);
    options.kernel = "../examples/rms_norm.c";
    options.rounds = 21; /* medians of microseconds, while other suites want the processors too */
    int n_wrong;
    cJSON *tree = run_bench(&options, &n_wrong);
    assert_int_equal(n_wrong, 0);
    double reference = 0, candidate = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, json_get(tree, "results"))
    {
        const char *kernel = json_get(item, "kernel")->valuestring;
        double seconds = json_get(item, "seconds")->valuedouble;
        assert_string_equal(json_get(item, "status")->valuestring, "PASSED");
        assert_true(seconds > 0 && json_get(item, "bytes_per_second")->valuedouble > 0);
        if (strcmp(kernel, "reference") == 0) reference = seconds;
        if (strcmp(kernel, "candidate") == 0) candidate = seconds;
    }
    assert_true(candidate > 0);
    if (candidate >= reference) fail_msg("%g s, the reference %g s", candidate, reference);
    cJSON_Delete(tree);
}

/* A token reads a row of 4 KB of a table of 525 MB, which is not copied for each. */
static void large_tensors_are_not_copied_often(void **state)
{
    (void)state;
    const size_t rotate = 256 << 20;
    op_call call = {.end = 1};
    call.tensors[EMBEDDING_IDS] = tensor_1d(NULL, DTYPE_I32, 1);
    call.tensors[EMBEDDING_TABLE] = tensor_2d(NULL, DTYPE_BF16, 128256, 2048);
    call.tensors[EMBEDDING_OUT] = tensor_2d(NULL, DTYPE_BF16, 1, 2048);
    assert_int_equal(bench_copies(op_get(OP_EMBEDDING), &call, rotate), 1);
    call.tensors[EMBEDDING_TABLE].shape[0] = 32000;
    assert_int_equal(bench_copies(op_get(OP_EMBEDDING), &call, rotate), 3);
    call.tensors[EMBEDDING_TABLE].shape[0] = 16;
    assert_int_equal(bench_copies(op_get(OP_EMBEDDING), &call, rotate), 256);
    assert_int_equal(bench_copies(op_get(OP_EMBEDDING), &call, 0), 1);
}

static int n_timed(const char *variant)
{
    const char *op = "rms_norm";
    workbench_bench_options options = quick(&op);
    options.variant = variant;
    int n_wrong;
    cJSON *tree = run_bench(&options, &n_wrong);
    int n = cJSON_GetArraySize(json_get(tree, "results"));
    assert_int_equal(n_wrong, 0);
    cJSON_Delete(tree);
    return n;
}

static void variants_have_names(void **state)
{
    (void)state;
    assert_int_equal(n_timed("best"), n_timed(NULL));
    const char *op = "rms_norm";
    workbench_bench_options options = quick(&op);
    options.variant = "fastest";
    strbuf out = {0};
    qp_error error;
    int n_wrong;
    assert_int_equal(workbench_bench(&options, &out, &n_wrong, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "fastest"));
    strbuf_free(&out);
}

/* A workload that the caller describes, and texts that describe none. */
static void workloads_can_be_described(void **state)
{
    (void)state;
    const char *op = "rms_norm";
    workbench_bench_options options = quick(&op);
    options.workload = "n_tokens=3 hidden_size=100 x:BF16";
    int n_wrong;
    cJSON *tree = run_bench(&options, &n_wrong);
    const cJSON *first = cJSON_GetArrayItem(json_get(tree, "results"), 0);
    assert_int_equal(n_wrong, 0);
    assert_string_equal(json_get(first, "workload")->valuestring, options.workload);
    cJSON_Delete(tree);
    static const struct {
        const char *workload, *why;
        int n_ops;
    } wrong[] = {{"n_tokens=3 hiden_size=8", "hiden_size=8", 1},
                 {"n_tokens=many", "whole number", 1},
                 {"n_tokens=3", "name the one operator", 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        strbuf out = {0};
        qp_error error;
        options.workload = wrong[i].workload, options.n_ops = wrong[i].n_ops;
        assert_int_equal(workbench_bench(&options, &out, &n_wrong, &error), QP_INVALID);
        if (!strstr(error.message, wrong[i].why)) fail_msg("%s", error.message);
        strbuf_free(&out);
    }
}

static void games_are_seen(void **state)
{
    (void)state;
    static const char *const games[] = {"kernels/gaming_nothing.c", "kernels/gaming_cache.c",
                                        "kernels/broken_crash.c"};
    const char *op = "rms_norm";
    for (size_t i = 0; i < sizeof games / sizeof *games; i++) {
        workbench_bench_options options = quick(&op);
        options.kernel = games[i];
        int n_wrong = 0;
        cJSON_Delete(run_bench(&options, &n_wrong));
        if (n_wrong == 0) fail_msg("%s was not seen", games[i]);
    }
}

static void a_broken_file_is_no_timing(void **state)
{
    (void)state;
    const char *op = "rms_norm";
    workbench_bench_options options = quick(&op);
    qp_error error;
    strbuf out = {0};
    int n_wrong;
    options.kernel = "kernels/broken_syntax.c";
    assert_int_equal(workbench_bench(&options, &out, &n_wrong, &error), QP_FORMAT);
    assert_non_null(strstr(error.message, "COMPILE_ERROR"));
    options.kernel = NULL;
    options.variant = "mmx";
    assert_int_equal(workbench_bench(&options, &out, &n_wrong, &error), QP_INVALID);
    strbuf_free(&out);
}

/* Refilling changes what changes from batch to batch, and nothing else. */
static void workloads_are_refilled(void **state)
{
    (void)state;
    qp_error error;
    workload load;
    const op_info *op = op_find("rms_norm");
    assert_int_equal(workload_create(op, "n_tokens=2 hidden_size=64", 1, &load, &error), QP_OK);
    float x = *(float *)load.call.tensors[0].data, weight = *(float *)load.call.tensors[1].data;
    workload_refill(op, &load.call, 2);
    assert_true(x != *(float *)load.call.tensors[0].data);
    assert_true(weight == *(float *)load.call.tensors[1].data);
    workload_free(&load);
    assert_int_not_equal(workload_create(op, "n_tokens=two", 1, &load, &error), QP_OK);
}

static void definitions_fit_operators(void **state)
{
    (void)state;
    for (const definition *d = definitions; d->name; d++) {
        const op_info *op = op_find(d->op);
        assert_non_null(op);
        for (int n = 0; d->workloads[n]; n++) {
            char text[1024];
            op_case about;
            qp_error error;
            definition_case(d, d->workloads[n], text, sizeof text);
            if (op_case_parse(op, text, &about, &error) != QP_OK)
                fail_msg("%s: %s", text, error.message);
        }
        cJSON *tree = definition_json(d);
        assert_non_null(strstr(json_get(tree, "reference")->valuestring, "def run("));
        cJSON_Delete(tree);
        assert_ptr_equal(definition_find(d->name), d);
    }
    assert_null(definition_find("rmsnorm"));
}

/* --- values of FlashInfer-Bench -----------------------------------------------------------------
 */

static void values_are_read_and_compared(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        uint8_t bytes[8];
        double value;
    } known[] = {{"float8_e4m3fn", {0x7e}, 448}, {"float8_e4m3fn", {0x81}, -0x1p-9},
                 {"float8_e5m2", {0x7b}, 57344}, {"float8_e5m2", {0xfc}, -INFINITY},
                 {"bfloat16", {0x80, 0x3f}, 1},  {"float16", {0, 0xc0}, -2},
                 {"int8", {0xff}, -1},           {"bool", {2}, 1},
                 {"int16", {0xfe, 0xff}, -2},    {"int64", {0, 0, 0, 0, 1}, 4294967296.0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const value_type *type = value_type_find(known[i].type);
        assert_non_null(type);
        assert_true(value_at(type, known[i].bytes, 0) == known[i].value);
    }
    assert_true(isnan(value_at(value_type_find("float8_e4m3fn"), "\xff", 0)));
    assert_null(value_type_find("float6_e2m3"));
    const value_type *pairs = value_type_find("float4_e2m1");
    const uint8_t low[] = {0x71}, high[] = {0x51}; /* 0.5 and 6, 0.5 and 3 */
    values_error pair = {0};
    assert_true(value_at(pairs, low, 0) == 0.5 && value_at(pairs, low, 1) == 6);
    assert_true(value_at(pairs, "\xf9", 0) == -0.5 && value_at(pairs, "\xf9", 1) == -6);
    values_compare(pairs, high, low, 1, 0.01, 0.01, &pair);
    assert_true(pair.n == 2 && pair.n_wrong == 1 && pair.first == 1 && pair.absolute == 3);
    const float expected[] = {1, 0, INFINITY, NAN, 100},
                right[] = {1.005f, 0.009f, INFINITY, NAN, 100.9f};
    const float wrong[] = {1.02f, 0.011f, -INFINITY, 0, NAN};
    values_error none = {0}, all = {0};
    values_compare(value_type_find("float32"), right, expected, 5, 0.01, 0.01, &none);
    values_compare(value_type_find("float32"), wrong, expected, 5, 0.01, 0.01, &all);
    assert_true(none.n_wrong == 0 && none.n == 5 && isfinite(none.absolute));
    assert_true(all.n_wrong == 5 && all.first == 0 && isinf(all.absolute));
}

static void random_values_are_in_range(void **state)
{
    (void)state;
    static const char *const names[] = {"float8_e4m3fn", "float8_e5m2", "float4_e2m1", "int8",
                                        "bool"};
    uint8_t data[512], again[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const value_type *type = value_type_find(names[i]);
        double most = type->high > 0 ? type->high : 2, least = type->high > 0 ? type->low : -2;
        values_randomize(type, data, sizeof data, 7);
        values_randomize(type, again, sizeof again, 7);
        assert_memory_equal(data, again, sizeof data);
        for (size_t j = 0; j < sizeof data * (size_t)type->parts; j++)
            assert_true(value_at(type, data, j) >= least && value_at(type, data, j) <= most);
    }
}

/* --- solutions ------------------------------------------------------------------------------- */

typedef struct solution_text {
    const char *definition, *language, *entry, *path;
    bool leaves_rows_out; /* all but the first hundred */
} solution_text;

/* After the worked example, whose kernel is then called whole_kernel. */
static const char hundred_rows[] = "\n#undef rms_norm_kernel\n"
                                   "void rms_norm_kernel(const op_call *call);\n"
                                   "void rms_norm_kernel(const op_call *call)\n"
                                   "{\n"
                                   "    op_call part = *call;\n"
                                   "    if (part.end > 100) part.end = 100;\n"
                                   "    whole_kernel(&part);\n"
                                   "}\n";

static void write_solution(const char *to, const solution_text *about)
{
    qp_error error;
    strbuf source = {0};
    if (about->leaves_rows_out) strbuf_puts(&source, "#define rms_norm_kernel whole_kernel\n");
    assert_int_equal(files_read("../examples/rms_norm.c", 1 << 20, &source, &error), QP_OK);
    if (about->leaves_rows_out) strbuf_puts(&source, hundred_rows);
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "name", "example");
    cJSON_AddStringToObject(tree, "definition", about->definition);
    cJSON_AddStringToObject(tree, "author", "a test");
    cJSON *spec = cJSON_AddObjectToObject(tree, "spec");
    cJSON_AddStringToObject(spec, "language", about->language);
    cJSON_AddStringToObject(spec, "entry_point", about->entry);
    cJSON *file = cJSON_CreateObject();
    cJSON_AddStringToObject(file, "path", about->path);
    cJSON_AddStringToObject(file, "content", strbuf_text(&source));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(tree, "sources"), file);
    char *text = cJSON_Print(tree);
    assert_int_equal(files_write(to, text, strlen(text), &error), QP_OK);
    cJSON_free(text);
    cJSON_Delete(tree);
    strbuf_free(&source);
}

static void solutions_become_traces(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-test-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/solution.json", folder);
    write_solution(path, &(solution_text){"rmsnorm_h4096", "c", "a/rms_norm.c::rms_norm_kernel",
                                          "a/rms_norm.c", false});
    workbench_import_options options = {.seed = 1, .threads = 1, .rounds = 1, .timeout_ms = 120000};
    qp_error error = {0};
    strbuf out = {0}, notes = {0};
    int n_failed = -1;
    if (workbench_import(path, &options, &out, &notes, &n_failed, &error) != QP_OK)
        fail_msg("%s", error.message);
    assert_int_equal(n_failed, 0);
    int n = 0;
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        cJSON *trace;
        assert_int_equal(json_parse(line, strlen(line), "trace", &trace, &error), QP_OK);
        const cJSON *evaluation = json_get(trace, "evaluation");
        assert_string_equal(json_get(evaluation, "status")->valuestring, "PASSED");
        const cJSON *performance = json_get(evaluation, "performance");
        assert_true(json_get(performance, "speedup_factor")->valuedouble > 0);
        cJSON_Delete(trace);
    }
    assert_int_equal(n, 3);
    strbuf_free(&out);
    unlink(path);
    rmdir(folder);
}

/* Each workload has its own verdict: a kernel that leaves rows out passes where it has few. */
static void workloads_are_judged_one_by_one(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-test-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/solution.json", folder);
    write_solution(path, &(solution_text){"rmsnorm_h4096", "c", "rms_norm.c::rms_norm_kernel",
                                          "rms_norm.c", true});
    workbench_import_options options = {.seed = 1, .threads = 1, .rounds = 1, .timeout_ms = 120000};
    qp_error error = {0};
    strbuf out = {0}, notes = {0};
    int n_failed = -1;
    assert_ok(workbench_import(path, &options, &out, &notes, &n_failed, &error));
    assert_int_equal(n_failed, 1);
    static const char *const expected[] = {"PASSED", "PASSED", "INCORRECT_NUMERICAL"};
    int n = 0;
    for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        cJSON *trace;
        assert_ok(json_parse(line, strlen(line), "trace", &trace, &error));
        assert_in_range(n, 0, 2);
        assert_string_equal(json_get(json_get(trace, "evaluation"), "status")->valuestring,
                            expected[n]);
        cJSON_Delete(trace);
    }
    assert_int_equal(n, 3);
    strbuf_free(&out);
    unlink(path);
    rmdir(folder);
}

/* Reports are made in the candidate's process: one that it forges is not taken, whatever it holds.
 */
static void forged_reports_are_refused(void **state)
{
    (void)state;
    static const char *const op = "rms_norm", *const files[] = {"hostile_zeros", "hostile_ones"};
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "kernels/%s.c", files[i]);
        workbench_bench_options options = quick(&op);
        options.kernel = path;
        qp_error error = {0};
        strbuf out = {0};
        int n_wrong = 0;
        assert_ok(workbench_bench(&options, &out, &n_wrong, &error));
        assert_true(n_wrong > 0);
        strbuf_free(&out);
    }
}

static void wrong_solutions_are_refused(void **state)
{
    (void)state;
    static const struct {
        solution_text text;
        const char *says;
    } wrong[] = {
        {{"rmsnorm_h1", "c", "a.c::rms_norm_kernel", "a.c", false}, "definition 'rmsnorm_h1'"},
        {{"rmsnorm_h4096", "fortran", "a.c::rms_norm_kernel", "a.c", false}, "language"},
        {{"rmsnorm_h4096", "c", "a.c::run", "a.c", false}, "FILE::rms_norm_kernel"},
        {{"rmsnorm_h4096", "cuda", "a.cu::rms_norm_kernel", "a.cu", false},
         "FILE::rms_norm_launch"},
        {{"rmsnorm_h4096", "c", "b.c::rms_norm_kernel", "a.c", false}, "not among the sources"},
        {{"rmsnorm_h4096", "c", "a.c::rms_norm_kernel", "../a.c", false}, "must lie inside"},
        {{"rmsnorm_h4096", "c", "a.c::rms_norm_kernel", "/tmp/a.c", false}, "must lie inside"},
        {{"rmsnorm_h4096", "c", "a.c::rms_norm_kernel", "b/../../a.c", false}, "must lie inside"},
    };
    char folder[] = "/tmp/quipu-test-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/solution.json", folder);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_solution(path, &wrong[i].text);
        workbench_import_options options = {.threads = 1, .rounds = 1, .timeout_ms = 1000};
        qp_error error = {0};
        strbuf out = {0}, notes = {0};
        int n_failed;
        assert_int_not_equal(workbench_import(path, &options, &out, &notes, &n_failed, &error),
                             QP_OK);
        if (!strstr(error.message, wrong[i].says))
            fail_msg("expected \"%s\", found \"%s\"", wrong[i].says, error.message);
        strbuf_free(&out);
    }
    unlink(path);
    rmdir(folder);
}

/* With the flashinfer-bench package, where the environment names a Python that has it. */
static void the_package_reads_what_is_exported(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-test-XXXXXX", command[512];
    assert_non_null(mkdtemp(folder));
    qp_error error = {0};
    strbuf out = {0};
    if (workbench_export(folder, &out, &error) != QP_OK) fail_msg("%s", error.message);
    strbuf_free(&out);
    const char *python = getenv("QUIPU_TEST_PYTHON");
    int status = 77;
    if (python) {
        snprintf(command, sizeof command, "%s scripts/flashinfer_bench_validate.py %s 1>&2", python,
                 folder);
        status = system(command);
        status = status > 255 ? status / 256 : status;
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    if (status == 77) skip_because("QUIPU_TEST_PYTHON names no Python with flashinfer-bench");
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_is_right_and_faster),
        cmocka_unit_test(large_tensors_are_not_copied_often),
        cmocka_unit_test(variants_have_names),
        cmocka_unit_test(workloads_can_be_described),
        cmocka_unit_test(games_are_seen),
        cmocka_unit_test(a_broken_file_is_no_timing),
        cmocka_unit_test(workloads_are_refilled),
        cmocka_unit_test(definitions_fit_operators),
        cmocka_unit_test(values_are_read_and_compared),
        cmocka_unit_test(random_values_are_in_range),
        cmocka_unit_test(solutions_become_traces),
        cmocka_unit_test(workloads_are_judged_one_by_one),
        cmocka_unit_test(forged_reports_are_refused),
        cmocka_unit_test(wrong_solutions_are_refused),
        cmocka_unit_test(the_package_reads_what_is_exported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
