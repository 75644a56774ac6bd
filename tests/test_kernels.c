/* Kernels from files inside a whole model: what --kernel runs, refuses and reports, by the program
 * as a process. */
#include "test.h"

#include "base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs "quipu ARGUMENTS"; its exit status. Both outputs are appended. */
static int run(strbuf *out, const char *arguments)
{
    char command[1024], block[4096];
    const char *binary = getenv("QUIPU_BINARY");
    assert_non_null(binary);
    snprintf(command, sizeof command, "'%s' %s 2>&1", binary, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    for (size_t n; (n = fread(block, 1, sizeof block, pipe)) > 0;)
        strbuf_append(out, block, n);
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void says(const char *arguments, int status, const char *part)
{
    strbuf out = {0};
    int found = run(&out, arguments);
    if (found != status || !strstr(strbuf_text(&out), part))
        fail_msg("%s: expected status %d and \"%s\", found %d: %s", arguments, status, part, found,
                 strbuf_text(&out));
    strbuf_free(&out);
}

#define RUN "run -m synthetic:tiny -p 1,2,3 -n 4 --temp 0 "

static void kernels_run_in_the_model(void **state)
{
    (void)state;
    says(RUN "--kernel rms_norm=kernels/right.c", 0, "93,216,140,151");
    says("diff -m synthetic:tiny --b operators --kernel rms_norm=kernels/right.c", 0,
         "reference, right.c");
}

static void wrong_kernels_are_found_by_diff(void **state)
{
    (void)state;
    says(RUN "--kernel rms_norm=kernels/model_wrong.c", 0, "442,437,179,316");
    says("diff -m synthetic:tiny --kernel rms_norm=kernels/model_wrong.c", 1,
         "results of threads differ from those of reference");
}

static void kernels_that_fail_are_not_run(void **state)
{
    (void)state;
    says(RUN "--kernel rms_norm=kernels/broken_eps.c", 1, "INCORRECT_NUMERICAL");
    says(RUN "--kernel rms_norm=kernels/absent.c", 1, "cannot be read");
    says(RUN "--kernel nothing=kernels/right.c", 2, "no operator 'nothing'");
    says(RUN "--kernel rms_norm", 2, "OPERATOR=FILE");
    says(RUN "--kernel rms_norm=kernels/right.cu", 1, "cannot be read");
}

static void kernels_that_end_the_run_are_named(void **state)
{
    (void)state;
    says(RUN "--kernel rms_norm=kernels/model_crash.c", 1, "signal 11");
    says(RUN "--kernel rms_norm=kernels/model_exit.c", 1, "ended the process with status 0");
}

static void kernels_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    says(RUN "--kernel rms_norm=kernels/model_none.c", 2, "accepts none of this model's 5 calls");
    says(RUN "--fuse --kernel rms_norm=kernels/right.c", 2, "this forward pass has no rms_norm");
    says(RUN "--exec serial --kernel rms_norm=kernels/right.c", 1, "its own kernels alone");
    says(RUN "--device cuda --kernel rms_norm=kernels/right.c", 1, "--device cuda excludes that");
}

/* A .cu file runs on a GPU, and is refused where there is none. */
static void kernels_for_a_gpu(void **state)
{
    (void)state;
#define EXAMPLE "--kernel rms_norm=../examples/rms_norm.cu"
    says(RUN "--device cpu " EXAMPLE, 2, "--device cpu excludes that");
    if (access("/dev/nvidiactl", F_OK) != 0 || system("nvcc --version >/dev/null 2>&1") != 0) {
        says(RUN EXAMPLE, 1, "it takes an NVIDIA GPU, and there is none here");
        return;
    }
    says("diff -m synthetic:tiny --b cuda " EXAMPLE, 0, "reference, rms_norm.cu");
    says("bench -m synthetic:tiny -p 8 -n 2 -r 1 --output json " EXAMPLE, 0, "\"times_own\": ");
}

static void bench_compares_with_quipus_own(void **state)
{
    (void)state;
    says("bench -m synthetic:tiny -p 8 -n 2 -r 1 --output json --kernel rms_norm=kernels/right.c",
         0, "\"times_own\": ");
}

/* A scripted program answers with a kernel that does not compile, one that is wrong, one that is
 * right in a block of Markdown, and the same again. */
static void a_program_improves_kernels(void **state)
{
    (void)state;
    char folder[] = "/tmp/quipu-test-XXXXXX", command[512];
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command,
             "ops improve rms_norm --command 'sh kernels/improver.sh' --rounds 4 -r 1 -t 1 -w "
             "1b -o %s",
             folder);
    says(command, 0, "best: round ");
    says(command, 2, "history.jsonl exists");
    strcat(command, " --resume"); /* a fifth to an eighth round, of the same kernel */
    says(command, 0, "    8  008.c   PASSED ");
    snprintf(command, sizeof command, "%s/history.jsonl", folder);
    FILE *file = fopen(command, "r");
    assert_non_null(file);
    static const char *const statuses[] = {"COMPILE_ERROR", "INCORRECT_NUMERICAL", "PASSED",
                                           "PASSED"};
    char line[4096];
    int n_best = 0;
    for (int i = 0; i < 8; i++) {
        const char *expected = statuses[i < 4 ? i : 3];
        assert_non_null(fgets(line, sizeof line, file));
        if (!strstr(line, expected)) fail_msg("expected %s in %s", expected, line);
        n_best += strstr(line, "\"best\":true") != NULL;
    }
    /* The same kernel is not better than itself, but for one comparison of 200: see test_tune. */
    assert_in_range(n_best, 1, 2);
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    /* A command that fails has lost its round, not the others. */
    snprintf(command, sizeof command,
             "ops improve rms_norm --rounds 3 --beam 2 -r 1 -t 1 -w 1b -o %s --command 'test -e "
             "%s/001.txt || exit 3; cat ../examples/rms_norm.c'",
             folder, folder);
    says(command, 0,
         "    1  001.c   NO_ANSWER                    -  the command failed: it ended with status "
         "3");
    says("ops prompt rms_norm", 0, "## This machine");
    says("ops prompt linear", 0, "typedef struct block_f8_128");
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    says("ops improve rms_norm -o /tmp/quipu-test-none --rounds 2 --command 'exit 3'", 1,
         "no kernel passed in 2 rounds");
    says("ops improve rms_norm -o /tmp/quipu-test-none --device cuda --command 'exit 3'", 1,
         "cuda");
    assert_int_equal(system("rm -r /tmp/quipu-test-none"), 0);
    says("ops improve rms_norm", 2, "--command is missing");
    says("ops improve rms_norm -w none --command 'exit 3'", 2, "no workload of rms_norm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_run_in_the_model),
        cmocka_unit_test(wrong_kernels_are_found_by_diff),
        cmocka_unit_test(kernels_that_fail_are_not_run),
        cmocka_unit_test(kernels_that_end_the_run_are_named),
        cmocka_unit_test(kernels_that_do_not_fit_are_refused),
        cmocka_unit_test(kernels_for_a_gpu),
        cmocka_unit_test(bench_compares_with_quipus_own),
        cmocka_unit_test(a_program_improves_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
