/* The program as a process: what it does with hostile arguments and files, and what it leaves
 * behind when a signal ends it. */
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
    if (!binary) skip();
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
        pid_t child = start((char *[]){"convert", "-m", "synthetic:llama-3.2-1b", "-o", out,
                                       "--type", "Q4_K_M", NULL});
        for (int tries = 0; tries < 1000 && count_files() < 1; tries++)
            usleep(10000);
        assert_int_equal(count_files(), 1);
        kill(child, signals[i]);
        int status = wait_for(child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_int_equal(count_files(), 0);
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
    };
    return cmocka_run_group_tests(tests, make, destroy);
}
