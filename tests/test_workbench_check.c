/* Checking candidates from files: all broken ones in tests/kernels get the right verdict, and the
 * worked example passes. */
#include "test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/json.h"
#include "workbench/workbench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The first verdict that is not PASSED on a candidate; the whole answer is left in `out`. */
static const char *verdict_on(const char *op, const char *file, int timeout_ms, strbuf *out,
                              char detail[600])
{
    static char status[64];
    qp_error error;
    int n_failed;
    workbench_check_options options = {.ops = &op,
                                       .n_ops = 1,
                                       .kernel = file,
                                       .seed = 1,
                                       .features = cpu_features(0),
                                       .timeout_ms = timeout_ms,
                                       .json = true};
    if (workbench_check(&options, out, &n_failed, &error) != QP_OK) fail_msg("%s", error.message);
    cJSON *tree;
    assert_int_equal(json_parse(out->data, out->length, "verdict", &tree, &error), QP_OK);
    assert_int_equal(cJSON_IsTrue(json_get(tree, "passed")), n_failed == 0);
    strcpy(status, "PASSED");
    detail[0] = '\0';
    const cJSON *item;
    cJSON_ArrayForEach(item, json_get(tree, "results"))
    {
        const char *found = json_get(item, "status")->valuestring;
        if (strcmp(found, "PASSED") == 0) continue;
        snprintf(status, sizeof status, "%s", found);
        snprintf(detail, 600, "%s", json_get(item, "detail")->valuestring);
        break;
    }
    cJSON_Delete(tree);
    return status;
}

static void broken_candidates_are_caught(void **state)
{
    (void)state;
    static const struct {
        const char *op, *file, *status, *says;
    } plants[] = {
        {"rms_norm", "right", "PASSED", ""},
        {"rms_norm", "broken_tail", "INCORRECT_NUMERICAL", "was not written"},
        {"rms_norm", "broken_eps", "INCORRECT_NUMERICAL", "small values"},
        {"paged_decode", "broken_pages", "INCORRECT_NUMERICAL", "out["},
        {"rms_norm", "broken_overrun", "RUNTIME_ERROR", "after the end of the row"},
        {"rms_norm", "broken_race", "INCORRECT_NUMERICAL", "threads"},
        {"rms_norm", "broken_uninitialised", "INCORRECT_NUMERICAL", "out[0, 0]"},
        {"rms_norm", "broken_rounding", "INCORRECT_NUMERICAL", "towards zero"},
        {"rope", "broken_rope", "INCORRECT_NUMERICAL", "q["},
        {"rms_norm", "broken_order", "INCORRECT_NUMERICAL", "before"},
        {"rms_norm", "broken_crash", "RUNTIME_ERROR", "SIGSEGV"},
        {"rms_norm", "broken_exit", "RUNTIME_ERROR", "ended with status 0"},
        {"rms_norm", "broken_syntax", "COMPILE_ERROR", "error: "},
        {"rms_norm", "broken_name", "COMPILE_ERROR", "void rms_norm_kernel"},
        {"rms_norm", "declines_all", "RUNTIME_ERROR", "rms_norm_accepts() declines every case"},
    };
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        char path[128], detail[600];
        strbuf out = {0};
        snprintf(path, sizeof path, "kernels/%s.c", plants[i].file);
        const char *status = verdict_on(plants[i].op, path, 60000, &out, detail);
        if (strcmp(status, plants[i].status) != 0 || !strstr(detail, plants[i].says))
            fail_msg("%s: expected %s with \"%s\", found %s: %s", plants[i].file, plants[i].status,
                     plants[i].says, status, detail);
        strbuf_free(&out);
    }
}

/* Candidates that attack the judge: none passes, none survives, none delays it. */
static void hostile_candidates_fool_nobody(void **state)
{
    (void)state;
    static const struct {
        const char *file, *status, *says;
        int timeout_ms;
    } attacks[] = {
        {"zeros", "RUNTIME_ERROR", "", 60000},
        {"ones", "RUNTIME_ERROR", "", 60000},
        {"pause", "RUNTIME_ERROR", "closed the channel", 60000},
        {"stop", "TIMEOUT", "not done after 500 ms", 500},
        {"daemon", "INCORRECT_NUMERICAL", "expected", 60000},
        {"parent", "INCORRECT_NUMERICAL", "was not written", 60000},
        {"memory", "INCORRECT_NUMERICAL", "was not written", 60000},
        {"thread", "", "", 60000},
        {"control", "", "", 60000},
        {"spin", "TIMEOUT", "not done after 500 ms", 500},
        {"include", "INCORRECT_NUMERICAL", "was not written", 60000},
        {"files", "INCORRECT_NUMERICAL", "was not written", 60000},
    };
    FILE *victim = fopen("/tmp/quipu-hostile-victim", "w");
    assert_non_null(victim);
    fclose(victim);
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        char path[128], detail[600];
        strbuf out = {0};
        uint64_t begin = clock_ns();
        snprintf(path, sizeof path, "kernels/hostile_%s.c", attacks[i].file);
        const char *status = verdict_on("rms_norm", path, attacks[i].timeout_ms, &out, detail);
        if (strcmp(status, "PASSED") == 0 || !strstr(status, attacks[i].status) ||
            !strstr(detail, attacks[i].says))
            fail_msg("%s: expected %s with \"%s\", found %s: %s", attacks[i].file,
                     attacks[i].status, attacks[i].says, status, detail);
        if (clock_ns() - begin > 60000000000u) fail_msg("%s: took too long", attacks[i].file);
        strbuf_free(&out);
    }
    assert_int_equal(access("/tmp/quipu-hostile", F_OK), -1);
    assert_int_equal(unlink("/tmp/quipu-hostile-victim"), 0);
    /* All that was started has ended. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void sleeping_candidates_time_out(void **state)
{
    (void)state;
    char detail[600];
    strbuf out = {0};
    assert_string_equal(verdict_on("rms_norm", "kernels/broken_sleep.c", 300, &out, detail),
                        "TIMEOUT");
    strbuf_free(&out);
}

/* Work that ends after the call returned: outputs are missing, and threads are left. */
static void threads_left_behind_are_seen(void **state)
{
    (void)state;
    char detail[600];
    strbuf out = {0};
    const char *status = verdict_on("rms_norm", "kernels/broken_thread.c", 60000, &out, detail);
    assert_string_not_equal(status, "PASSED");
    strbuf_free(&out);
}

static void the_example_passes(void **state)
{
    (void)state;
    char detail[600];
    strbuf out = {0};
    const char *status = verdict_on("rms_norm", "../examples/rms_norm.c", 60000, &out, detail);
    if (strcmp(status, "PASSED") != 0) fail_msg("%s: %s", status, detail);
    strbuf_free(&out);
}

static void verdicts_are_kept_for_prompts(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-test-XXXXXX", path[128], inner[64];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/verdicts", folder);
    snprintf(path, sizeof path, "%s/rms_norm.txt", inner);
    const char *op = "rms_norm";
    workbench_check_options options = {.ops = &op,
                                       .n_ops = 1,
                                       .kernel = "kernels/broken_syntax.c",
                                       .timeout_ms = 60000,
                                       .verdict_path = path};
    qp_error error;
    strbuf out = {0};
    int n_failed;
    assert_int_equal(workbench_check(&options, &out, &n_failed, &error), QP_OK);
    assert_int_equal(n_failed, 1);
    strbuf_clear(&out);
    assert_int_equal(workbench_prompt(op, path, false, &out, &error), QP_OK);
    const char *last = strstr(strbuf_text(&out), "## The last attempt");
    assert_non_null(last);
    assert_non_null(strstr(last, "COMPILE_ERROR"));
    assert_non_null(strstr(last, "-O3 -march=native"));
    strbuf_free(&out);
    unlink(path);
    rmdir(inner);
    rmdir(folder);
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    static const char *const ops[] = {"rms_norm", "add"}, *const unknown[] = {"nothing"};
    static const struct {
        workbench_check_options options;
        const char *says;
    } wrong[] = {
        {{.ops = ops, .n_ops = 2, .kernel = "kernels/right.c"}, "one operator"},
        {{.kernel = "kernels/right.c"}, "one operator"},
        {{.ops = ops, .n_ops = 1, .kernel = "kernels/right.c", .variant = "avx2"}, "--variant"},
        {{.ops = ops, .n_ops = 1, .kernel = "kernels/absent.c"}, "kernels/absent.c"},
        {{.ops = ops, .n_ops = 1, .kernel = "kernels/norm.h"}, "ends in .c, .cu or .so"},
        {{.ops = unknown, .n_ops = 1}, "no operator 'nothing'"},
        {{.ops = ops, .n_ops = 1, .variant = "mmx"}, "no variant 'mmx'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qp_error error = {0};
        strbuf out = {0};
        int n_failed;
        assert_int_not_equal(workbench_check(&wrong[i].options, &out, &n_failed, &error), QP_OK);
        if (!strstr(error.message, wrong[i].says))
            fail_msg("expected \"%s\", found \"%s\"", wrong[i].says, error.message);
        strbuf_free(&out);
    }
}

/* Without features the reference alone runs, and is what would be chosen. */
static void kernels_are_chosen(void **state)
{
    (void)state;
    const char *op = "rms_norm";
    for (int best = 0; best < 2; best++) {
        for (int any = 0; any < 2; any++) {
            workbench_check_options options = {.ops = &op,
                                               .n_ops = 1,
                                               .seed = 2,
                                               .variant = best ? "best" : NULL,
                                               .features = any ? cpu_features(0) : 0,
                                               .timeout_ms = 60000};
            qp_error error;
            strbuf out = {0};
            int n_failed = -1;
            assert_int_equal(workbench_check(&options, &out, &n_failed, &error), QP_OK);
            if (n_failed != 0) fail_msg("%s", strbuf_text(&out));
            if (!any) assert_null(strstr(strbuf_text(&out), "avx"));
            strbuf_free(&out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_candidates_are_caught),
        cmocka_unit_test(hostile_candidates_fool_nobody),
        cmocka_unit_test(sleeping_candidates_time_out),
        cmocka_unit_test(threads_left_behind_are_seen),
        cmocka_unit_test(the_example_passes),
        cmocka_unit_test(verdicts_are_kept_for_prompts),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(kernels_are_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
