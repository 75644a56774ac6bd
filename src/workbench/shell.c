/* Programs with a text on their standard input: see shell.h. */
#include "workbench/shell.h"

#include "base/clock.h"
#include "base/platform.h"
#include "op/harness/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 200, END_MS = 1000 };

typedef struct conversation {
    int to, from; /* pipes of the program; -1: closed */
    const char *input;
    size_t length, written;
    strbuf *out;
    size_t taken;
} conversation;

static void close_pipe(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* In the child. */
static void start(const char *command, const int down[2], const int up[2], pid_t parent)
{
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    setpgid(0, 0);
    platform_end_with_parent(parent);
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void write_some(conversation *c)
{
    ssize_t n = write(c->to, c->input + c->written, c->length - c->written);
    if (n > 0) c->written += (size_t)n;
    const bool failed = n < 0 && errno != EAGAIN && errno != EINTR; /* it reads no more */
    if (failed || c->written == c->length) close_pipe(&c->to);
}

static void read_some(conversation *c)
{
    char block[4096];
    ssize_t n = read(c->from, block, sizeof block);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
        close_pipe(&c->from);
        return;
    }
    strbuf_append(c->out, block, (size_t)n);
    c->taken += (size_t)n;
}

/* Until the program has closed its output. */
static qp_status talk(conversation *c, uint64_t deadline, const volatile int *cancel,
                      qp_error *error)
{
    while (c->from >= 0) {
        struct pollfd waits[] = {{.fd = c->from, .events = POLLIN},
                                 {.fd = c->to, .events = POLLOUT}};
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "interrupted");
        if (clock_ns() > deadline) return error_set(error, QP_FORMAT, "it took too long");
        if (c->taken > SHELL_OUTPUT_MOST)
            return error_set(error, QP_FORMAT, "it printed more than %d bytes", SHELL_OUTPUT_MOST);
        if (poll(waits, 2, LOOK_MS) <= 0) continue;
        if (waits[1].revents) write_some(c);
        if (waits[0].revents) read_some(c);
    }
    return QP_OK;
}

static qp_status end(pid_t child, qp_status status, qp_error *error)
{
    char what[160];
    int result;
    if (status != QP_OK || !child_wait(child, clock_ns() + END_MS * UINT64_C(1000000), &result)) {
        child_end_group(child);
        return status == QP_OK ? error_set(error, QP_FORMAT, "it closed its output and went on")
                               : status;
    }
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return QP_OK;
    if (WIFEXITED(result))
        return error_set(error, QP_FORMAT, "it ended with status %d", WEXITSTATUS(result));
    child_describe_end(result, what, sizeof what);
    return error_set(error, QP_FORMAT, "it was %s", what);
}

qp_status shell_run(const char *command, const char *input, size_t length, int timeout_ms,
                    const volatile int *cancel, strbuf *out, qp_error *error)
{
    int down[2], up[2];
    const pid_t parent = getpid();
    if (platform_pipe(down) != 0) return error_set(error, QP_IO, "%s", strerror(errno));
    if (platform_pipe(up) != 0) {
        close(down[0]);
        close(down[1]);
        return error_set(error, QP_IO, "%s", strerror(errno));
    }
    conversation c = {.to = down[1], .from = up[0], .input = input, .length = length, .out = out};
    fcntl(c.to, F_SETFL, O_NONBLOCK);
    const pid_t child = fork();
    if (child == 0) start(command, down, up, parent);
    close(down[0]);
    close(up[1]);
    const uint64_t deadline = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    qp_status status = child < 0 ? error_set(error, QP_IO, "%s", strerror(errno))
                                 : end(child, talk(&c, deadline, cancel, error), error);
    close_pipe(&c.to);
    close_pipe(&c.from);
    return status;
}
