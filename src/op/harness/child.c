/* Runs a task in a process of its own: see child.h.
 *
 * The result comes back through a pipe. The child starts its threads itself: the parent's threads
 * do not exist in it.
 */
#include "op/harness/child.h"

#include "base/clock.h"
#include "base/platform.h"
#include "op/harness/check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { END_MS = 1000, LOOK_MS = 200 };

/* Reads the result: the bytes that came before the end of the pipe or before the time limit. */
static size_t read_result(int from, int timeout_ms, const volatile int *cancel, void *result,
                          size_t result_size, bool *timed_out)
{
    uint64_t deadline = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    size_t got = 0;
    *timed_out = false;
    while (got < result_size && !(cancel && *cancel)) {
        uint64_t now = clock_ns();
        struct pollfd wait = {.fd = from, .events = POLLIN};
        *timed_out = now >= deadline;
        if (*timed_out) break;
        uint64_t left_ms = (deadline - now) / 1000000u + 1;
        int ready = poll(&wait, 1, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        if (ready < 0) break;
        ssize_t n = read(from, (char *)result + got, result_size - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += (size_t)n;
    }
    return got;
}

static int result_to = -1;

int child_result_descriptor(void)
{
    return result_to;
}

static void run_child(int to, child_task *task, void *context, void *result, size_t result_size)
{
    /* Resets signal handlers: the parent's handlers must not run in the child. */
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++)
        signal(deadly[i], SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    result_to = to;
    setsid(); /* no terminal, and a group of its own, to end with all that it started */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    dup2(STDERR_FILENO, STDOUT_FILENO);
    task(context, result);
    const char *bytes = result;
    for (size_t sent = 0; sent < result_size;) {
        ssize_t n = write(to, bytes + sent, result_size - sent);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) sent += (size_t)n;
    }
    _exit(0);
}

static const char *signal_name(int number)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
                 {SIGILL, "SIGILL"},   {SIGABRT, "SIGABRT"}, {SIGKILL, "SIGKILL"},
                 {SIGTERM, "SIGTERM"}, {SIGSYS, "SIGSYS"},   {SIGTRAP, "SIGTRAP"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].number == number) return names[i].name;
    }
    return "signal";
}

void child_describe_end(int status, char *what, size_t size)
{
    if (WIFSIGNALED(status))
        snprintf(what, size, "killed by signal %d (%s: %s)", WTERMSIG(status),
                 signal_name(WTERMSIG(status)), strsignal(WTERMSIG(status)));
    else
        snprintf(what, size, "ended with status %d before its verdict", WEXITSTATUS(status));
}

bool child_wait(int child, uint64_t deadline, int *status)
{
    pid_t ended;
    while ((ended = waitpid(child, status, WNOHANG)) != child) {
        if ((ended < 0 && errno != EINTR) || clock_ns() >= deadline) return false;
        usleep(1000);
    }
    kill(-child, SIGKILL);
    return true;
}

void child_end_group(int child)
{
    int status;
    kill(-child, SIGKILL);
    kill(child, SIGKILL); /* its group may not be there yet */
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    kill(-child, SIGKILL);
}

child_end child_run(child_task *task, void *context, void *result, size_t result_size,
                    int timeout_ms, const volatile int *cancel, char *what, size_t size)
{
    int ends[2];
    what[0] = '\0';
    if (pipe(ends) != 0) {
        snprintf(what, size, "a pipe: %s", strerror(errno));
        return CHILD_FAILED;
    }
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        platform_end_with_parent(parent);
        close(ends[0]);
        run_child(ends[1], task, context, result, result_size);
    }
    close(ends[1]);
    if (child < 0) {
        snprintf(what, size, "a process: %s", strerror(errno));
        close(ends[0]);
        return CHILD_FAILED;
    }
    bool timed_out;
    size_t got = read_result(ends[0], timeout_ms, cancel, result, result_size, &timed_out);
    close(ends[0]);
    /* A child that closed its end of the pipe is about to end, or is killed. */
    int status;
    bool ended = !timed_out && got < result_size &&
                 child_wait(child, clock_ns() + (uint64_t)END_MS * 1000000u, &status);
    if (ended) child_describe_end(status, what, size);
    if (!ended) child_end_group(child);
    if (got == result_size) return CHILD_DONE;
    if (timed_out)
        snprintf(what, size, "not done after %d ms", timeout_ms);
    else if (!ended)
        snprintf(what, size, "it closed the channel to the judge and went on");
    return timed_out ? CHILD_TIMEOUT : CHILD_CRASHED;
}

typedef struct check_context {
    const op_info *op;
    const op_variant *variant;
    const char *case_text;
    uint64_t seed;
} check_context;

static void run_check(void *context, void *result)
{
    const check_context *check = context;
    check_variant(check->op, check->variant, check->case_text, check->seed, result);
}

void check_in_child(const op_info *op, const op_variant *variant, const char *case_text,
                    uint64_t seed, int timeout_ms, check_verdict *verdict)
{
    check_context context = {op, variant, case_text, seed};
    char what[128];
    *verdict = (check_verdict){0};
    child_end end = child_run(run_check, &context, verdict, sizeof *verdict, timeout_ms, NULL, what,
                              sizeof what);
    if (end == CHILD_DONE) return;
    *verdict =
        (check_verdict){.status = end == CHILD_TIMEOUT ? CHECK_TIMEOUT : CHECK_RUNTIME_ERROR};
    snprintf(verdict->detail, sizeof verdict->detail, "%s: %s", case_text, what);
}
