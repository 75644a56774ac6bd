/* Questions to a process that runs untrusted code: see dialogue.h. */
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#include "workbench/dialogue.h"

#include "base/clock.h"
#include "base/hash.h"
#include "op/harness/child.h"
#include "workbench/sandbox.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { END_MS = 1000, LOOK_MS = 200 };

/* --- the child's side ------------------------------------------------------------------------ */

bool dialogue_read(int socket, dialogue_message *out)
{
    size_t got = 0;
    while (got < sizeof *out) {
        ssize_t n = read(socket, (char *)out + got, sizeof *out - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

bool dialogue_answer(int socket, const dialogue_message *question, uint32_t code)
{
    const dialogue_message answer = {.number = question->number, .what = code};
    return write(socket, &answer, sizeof answer) == sizeof answer;
}

/* --- the judge's side ------------------------------------------------------------------------ */

static bool cancelled(const dialogue *d)
{
    return d->cancel && *d->cancel;
}

static bool fail(check_status *status, check_status what, char *detail, size_t size,
                 const char *text)
{
    *status = what;
    snprintf(detail, size, "%s", text);
    return false;
}

/* Reports why there was no answer: timeout, signal or exit. */
static bool fail_by_end(dialogue *d, uint64_t deadline, check_status *status, char *detail,
                        size_t size)
{
    char text[160];
    uint64_t soon = clock_ns() + (uint64_t)END_MS * 1000000u;
    if (clock_ns() >= deadline) {
        snprintf(text, sizeof text, "not done after %d ms", d->timeout_ms);
        return fail(status, CHECK_TIMEOUT, detail, size, text);
    }
    if (cancelled(d)) return fail(status, CHECK_RUNTIME_ERROR, detail, size, "interrupted");
    int end;
    if (child_wait(d->child, soon < deadline ? soon : deadline, &end)) {
        d->child = 0;
        child_describe_end(end, text, sizeof text);
        return fail(status, CHECK_RUNTIME_ERROR, detail, size, text);
    }
    return fail(status, CHECK_RUNTIME_ERROR, detail, size,
                "it closed the channel to the judge and went on");
}

/* Waits for the answer to the last question and ignores everything else. */
static bool await(dialogue *d, uint64_t deadline, uint32_t *code, check_status *status,
                  char *detail, size_t size)
{
    dialogue_message got = {0};
    size_t count = 0;
    while (count < sizeof got) {
        uint64_t now = clock_ns();
        struct pollfd wait = {.fd = d->socket, .events = POLLIN};
        if (now >= deadline || cancelled(d)) return fail_by_end(d, deadline, status, detail, size);
        uint64_t left_ms = (deadline - now) / 1000000u + 1;
        int ready = poll(&wait, 1, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
        if (ready <= 0) continue; /* timeout, or a signal */
        ssize_t n = read(d->socket, (char *)&got + count, sizeof got - count);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_by_end(d, deadline, status, detail, size);
        count += (size_t)n;
    }
    *code = got.what;
    if (got.number == d->number) return true;
    return fail(status, CHECK_RUNTIME_ERROR, detail, size,
                "it wrote into the channel to the judge");
}

bool dialogue_start(dialogue *d, dialogue_child *child, void *context, int timeout_ms,
                    const volatile int *cancel, check_status *status, char *detail, size_t size)
{
    int ends[2];
    const pid_t judge = getpid();
    *d = (dialogue){.socket = -1,
                    .output = sandbox_output_open(),
                    .printed = d->printed,
                    .timeout_ms = timeout_ms,
                    .left_ns = (uint64_t)timeout_ms * 1000000u,
                    .cancel = cancel,
                    .number = (uint64_t)(uintptr_t)d ^ clock_ns()};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        dialogue_end(d);
        return fail(status, CHECK_RUNTIME_ERROR, detail, size, strerror(errno));
    }
    const pid_t id = fork();
    if (id == 0) child(context, ends[1], judge);
    close(ends[1]);
    d->socket = ends[0];
    if (id > 0) {
        d->child = id;
        return true;
    }
    dialogue_end(d);
    return fail(status, CHECK_RUNTIME_ERROR, detail, size, "no process can be made");
}

bool dialogue_ask(dialogue *d, uint32_t what, uint32_t n, uint32_t *code, check_status *status,
                  char *detail, size_t size)
{
    const uint64_t begin = clock_ns(), deadline = begin + d->left_ns;
    d->number = hash_mix(d->number + begin); /* so that the child cannot guess it in advance */
    const dialogue_message question = {.number = d->number, .what = what, .n = n};
    bool answered = send(d->socket, &question, sizeof question, MSG_NOSIGNAL) == sizeof question
                        ? await(d, deadline, code, status, detail, size)
                        : fail_by_end(d, deadline, status, detail, size);
    const uint64_t used = clock_ns() - begin;
    d->left_ns = used < d->left_ns ? d->left_ns - used : 0;
    return answered;
}

void dialogue_end(dialogue *d)
{
    if (d->socket >= 0) close(d->socket);
    if (d->child > 0) child_end_group(d->child);
    sandbox_output_take(d->output, d->printed);
    d->socket = d->output = -1;
    d->child = 0;
}
