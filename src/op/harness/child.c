/* The check in a process of its own, so that a crash or a hang is a result: see check.h.
 *
 * The verdict comes back through a pipe. The child starts its threads itself: those of the parent
 * do not exist in it.
 */
#include "base/clock.h"
#include "op/harness/check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_verdict(check_verdict *verdict, check_status status, const char *case_text,
                        const char *what)
{
    *verdict = (check_verdict){.status = status};
    snprintf(verdict->detail, sizeof verdict->detail, "%s: %s", case_text, what);
}

/* Reads the verdict; the bytes that came before the end of the pipe or of the time. */
static size_t read_verdict(int from, int timeout_ms, check_verdict *verdict, bool *timed_out)
{
    uint64_t deadline = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    size_t got = 0;
    *timed_out = false;
    while (got < sizeof *verdict) {
        uint64_t now = clock_ns();
        struct pollfd wait = {.fd = from, .events = POLLIN};
        int ready = now >= deadline ? 0 : poll(&wait, 1, (int)((deadline - now) / 1000000u) + 1);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) {
            *timed_out = ready == 0;
            break;
        }
        ssize_t n = read(from, (char *)verdict + got, sizeof *verdict - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += (size_t)n;
    }
    return got;
}

static void run_child(int to, const op_info *op, const op_variant *variant, const char *case_text,
                      uint64_t seed)
{
    /* A handler that the parent installed would carry on in the parent's name. */
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++)
        signal(deadly[i], SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    check_verdict verdict;
    check_variant(op, variant, case_text, seed, &verdict);
    const char *bytes = (const char *)&verdict;
    for (size_t sent = 0; sent < sizeof verdict;) {
        ssize_t n = write(to, bytes + sent, sizeof verdict - sent);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) sent += (size_t)n;
    }
    _exit(0);
}

void check_in_child(const op_info *op, const op_variant *variant, const char *case_text,
                    uint64_t seed, int timeout_ms, check_verdict *verdict)
{
    int ends[2];
    if (pipe(ends) != 0) {
        set_verdict(verdict, CHECK_RUNTIME_ERROR, case_text, strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        run_child(ends[1], op, variant, case_text, seed);
    }
    close(ends[1]);
    if (child < 0) {
        set_verdict(verdict, CHECK_RUNTIME_ERROR, case_text, strerror(errno));
        close(ends[0]);
        return;
    }
    bool timed_out;
    size_t got = read_verdict(ends[0], timeout_ms, verdict, &timed_out);
    close(ends[0]);
    if (timed_out) kill(child, SIGKILL);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (got == sizeof *verdict) return;

    char what[128];
    if (timed_out)
        snprintf(what, sizeof what, "not done after %d ms", timeout_ms);
    else if (WIFSIGNALED(status))
        snprintf(what, sizeof what, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(what, sizeof what, "ended with status %d before its verdict", WEXITSTATUS(status));
    set_verdict(verdict, timed_out ? CHECK_TIMEOUT : CHECK_RUNTIME_ERROR, case_text, what);
}
