/* The program as a process: its answers to invalid arguments and files, and that nothing is left
 * when a signal ends it. */
#include "model_files.h"

#include "base/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static char folder[64];

/* Starts the program with `arguments`, NULL at the end; what it prints goes to folder/out and
 * folder/err. */
static pid_t start(char *const *arguments)
{
    char *binary = getenv("QUIPU_BINARY"), *words[32] = {binary};
    assert_non_null(binary);
    for (int i = 0; i < 30 && arguments[i]; i++)
        words[i + 1] = arguments[i];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    char path[128];
    snprintf(path, sizeof path, "%s/out", folder);
    dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    snprintf(path, sizeof path, "%s/err", folder);
    dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    execv(binary, words);
    _exit(127);
}

static int wait_for(pid_t child)
{
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static const char *text_of(const char *name)
{
    static char text[8192];
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Expects the program to refuse with this in its message, and to print nothing else. */
static void refuses(char *const *arguments, const char *part)
{
    int status = wait_for(start(arguments));
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0) fail_msg("status %d", status);
    assert_string_equal(text_of("out"), "");
    if (!strstr(text_of("err"), part)) fail_msg("expected \"%s\" in: %s", part, text_of("err"));
}
#define REFUSES(part, ...) refuses((char *[]){__VA_ARGS__, NULL}, part)

static int make(void **state)
{
    (void)state;
    folder_make(folder);
    return 0;
}

static int destroy(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/out", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/err", folder);
    unlink(path);
    folder_remove(folder);
    return 0;
}

static void endless_files_are_refused(void **state)
{
    (void)state;
    REFUSES("/dev/zero: expected at most", "run", "-m", "golden/models/llama-text.gguf", "-f",
            "/dev/zero");
}

/* A template's texts cannot hold one; without a template it is text like any other. */
static void a_nul_in_a_message_is_refused(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    folder_write(folder, "config.json", "Once\0upon", 9);
    REFUSES("NUL character", "run", "-m", "golden/models/llama-text.gguf", "-f", path, "-n", "1");
    int status = wait_for(start((char *[]){"run", "-m", "golden/models/llama-text.gguf", "-f", path,
                                           "-n", "1", "--raw", NULL}));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    unlink(path);
}

static void biases_are_finite(void **state)
{
    (void)state;
    static char *const wrong[] = {"5:1e400", "5:-1e400", "5:nan", "5:inf"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        REFUSES("finite number", "run", "-m", "golden/models/llama-text.gguf", "-p", "x",
                "--logit-bias", wrong[i]);
}

static void costs_are_measured_only_where_they_can_be_kept(void **state)
{
    (void)state;
    char *home = getenv("HOME"), *kept = home ? strdup(home) : NULL;
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/proc/nowhere", 1);
    uint64_t begin = clock_ns();
    REFUSES("/proc/nowhere", "schedule", "-m", "synthetic:tiny", "--measure");
    assert_true(clock_ns() - begin < 5000000000u);
    if (kept) setenv("HOME", kept, 1);
    free(kept);
}

/* Files in the folder besides out and err. */
static int count_files(void)
{
    DIR *dir = opendir(folder);
    int n = -2;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void a_signal_leaves_no_half_a_model(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGHUP, SIGQUIT};
    char out[128];
    snprintf(out, sizeof out, "%s/model.gguf", folder);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t child = start((char *[]){"convert", "-m", "synthetic:smollm2-135m", "-o", out,
                                       "--type", "Q4_K_M", NULL});
        for (int tries = 0; tries < 6000 && count_files() < 1; tries++)
            usleep(10000);
        assert_int_equal(count_files(), 1);
        kill(child, signals[i]);
        int status = wait_for(child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_int_equal(count_files(), 0);
    }
}

/* The process of a candidate that `parent` has started and that has loaded its code, and the folder
 * of that code; 0 where there is none yet. */
static char candidate_folder[512];

static int find_candidate(pid_t parent)
{
    char path[64], line[512];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &child) != 1) child = 0;
    if (file) fclose(file);
    snprintf(path, sizeof path, "/proc/%d/maps", child);
    file = child ? fopen(path, "r") : NULL;
    candidate_folder[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        char *begin = strstr(line, "/tmp/quipu-"), *end = strstr(line, "/rms_norm.so");
        if (begin && end)
            snprintf(candidate_folder, sizeof candidate_folder, "%.*s", (int)(end - begin), begin);
    }
    if (file) fclose(file);
    return candidate_folder[0] ? child : 0;
}

static void remove_candidate(void)
{
    static const char *const names[] = {"rms_norm.so", "quipu_kernel.h"};
    for (int i = 0; i < 2; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", candidate_folder, names[i]);
        unlink(path);
    }
    rmdir(candidate_folder);
}

/* A kernel that never returns ends with the program that checks it, and its files go too. */
static void a_signal_ends_the_candidate(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t child = start((char *[]){"ops", "check", "rms_norm", "--kernel",
                                       "kernels/hostile_spin.c", "--timeout", "60", NULL});
        int candidate = 0;
        for (int tries = 0; tries < 6000 && !candidate; tries++) {
            usleep(10000);
            candidate = find_candidate(child);
        }
        assert_true(candidate > 0);
        kill(child, signals[i]);
        wait_for(child);
        for (int tries = 0; tries < 6000 && kill(candidate, 0) == 0; tries++)
            usleep(10000);
        if (kill(candidate, 0) == 0) fail_msg("%d is still there", candidate);
        if (signals[i] == SIGKILL)
            remove_candidate(); /* nothing of the program was left to do it */
        assert_int_equal(access(candidate_folder, F_OK), -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endless_files_are_refused),
        cmocka_unit_test(a_nul_in_a_message_is_refused),
        cmocka_unit_test(biases_are_finite),
        cmocka_unit_test(costs_are_measured_only_where_they_can_be_kept),
        cmocka_unit_test(a_signal_leaves_no_half_a_model),
        cmocka_unit_test(a_signal_ends_the_candidate),
    };
    return cmocka_run_group_tests(tests, make, destroy);
}
