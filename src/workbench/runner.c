/* Runs a candidate in a process of its own: see runner.h. */
#define _GNU_SOURCE /* pipe2 */
#include "workbench/runner.h"

#include "base/clock.h"
#include "base/printable.h"
#include "op/harness/child.h"
#include "workbench/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_SIZE = 400, END_MS = 1000, LOOK_MS = 200 };

typedef enum verb { VERB_LOAD, VERB_SCRATCH, VERB_RUN, VERB_REST } verb;

/* Shared memory: questions that the judge writes, and answers. The candidate's code may write here
 * too, so pointers are never read back, and every other value is checked. */
typedef struct control {
    verb verb;
    op_call call;
    size_t scratch_stride;
    int n_threads;
    bool declined, failed;
    uint64_t scratch_bytes;
    char text[TEXT_SIZE]; /* why loading failed */
} control;

/* A message is the number of the question. */
typedef uint64_t message;

struct runner {
    const candidate *candidate;
    pid_t child;
    int to, from; /* -1: closed */
    control *control;
    message asked;
    uint64_t deadline; /* deadline, of clock_ns() */
    int timeout_ms;
};

/* --- The candidate's side. --- */

static bool read_message(int from, message *out)
{
    size_t got = 0;
    while (got < sizeof *out) {
        ssize_t n = read(from, (char *)out + got, sizeof *out - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

typedef struct loaded {
    const runner *runner;
    op_variant variant;
    thread_pool *pools[CHECK_POOLS];
} loaded;

static thread_pool *pool_of(loaded *l, int n_threads)
{
    for (int i = 0; i < CHECK_POOLS; i++) {
        qp_error error;
        if (check_pool_sizes[i] != n_threads) continue;
        if (!l->pools[i] && thread_pool_create(n_threads, &l->pools[i], &error) != QP_OK) _exit(1);
        return l->pools[i];
    }
    return NULL;
}

static void load(loaded *l, const op_case *about)
{
    control *c = l->runner->control;
    const candidate *candidate = l->runner->candidate;
    c->failed = !candidate_load(candidate, &l->variant, c->text, sizeof c->text);
    if (!c->failed) c->declined = !op_case_accepted(candidate->op, about, &l->variant);
}

static void obey(loaded *l)
{
    control *c = l->runner->control;
    op_call call = c->call;
    switch (c->verb) {
    case VERB_SCRATCH:
        c->scratch_bytes = l->variant.scratch_bytes ? l->variant.scratch_bytes(&call) : UINT64_MAX;
        break;
    case VERB_RUN:
        check_run_call(l->runner->candidate->op, l->variant.kernel, &call, c->scratch_stride,
                       c->n_threads, pool_of(l, c->n_threads));
        break;
    default:
        for (int i = 0; i < CHECK_POOLS; i++) {
            thread_pool_destroy(l->pools[i]);
            l->pools[i] = NULL;
        }
    }
}

static void serve(const runner *r, const op_case *about, int from, int to, pid_t judge)
{
    loaded l = {.runner = r};
    message asked;
    sandbox_enter(judge, (const int[]){from, to}, r->timeout_ms / 1000 + 1);
    if (!r->candidate->cuda) sandbox_forbid();
    while (read_message(from, &asked)) {
        if (r->control->verb == VERB_LOAD)
            load(&l, about);
        else
            obey(&l);
        if (write(to, &asked, sizeof asked) != sizeof asked) break;
    }
    _exit(0);
}

/* --- The judge's side. --- */

static bool cancelled(const runner *r)
{
    return r->candidate->cancel && *r->candidate->cancel;
}

static bool fail(check_status *status, check_status what, char *detail, size_t size,
                 const char *text)
{
    *status = what;
    snprintf(detail, size, "%s", text);
    return false;
}

/* Reports why there was no answer: timeout, signal or exit. */
static bool fail_by_end(runner *r, check_status *status, char *detail, size_t size)
{
    char text[160];
    uint64_t soon = clock_ns() + (uint64_t)END_MS * 1000000u;
    if (clock_ns() >= r->deadline) {
        snprintf(text, sizeof text, "not done after %d ms", r->timeout_ms);
        return fail(status, CHECK_TIMEOUT, detail, size, text);
    }
    if (cancelled(r)) return fail(status, CHECK_RUNTIME_ERROR, detail, size, "interrupted");
    int end;
    if (child_wait(r->child, soon < r->deadline ? soon : r->deadline, &end)) {
        r->child = 0;
        child_describe_end(end, text, sizeof text);
        return fail(status, CHECK_RUNTIME_ERROR, detail, size, text);
    }
    return fail(status, CHECK_RUNTIME_ERROR, detail, size,
                "it closed the channel to the judge and went on");
}

/* Waits for the answer to the last question and ignores everything else. */
static bool await(runner *r, check_status *status, char *detail, size_t size)
{
    message got = 0;
    size_t count = 0;
    while (count < sizeof got) {
        uint64_t now = clock_ns();
        struct pollfd wait = {.fd = r->from, .events = POLLIN};
        if (now >= r->deadline || cancelled(r)) return fail_by_end(r, status, detail, size);
        uint64_t left_ms = (r->deadline - now) / 1000000u + 1;
        int ready = poll(&wait, 1, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS);
        if (ready <= 0) continue; /* timeout, or a signal */
        ssize_t n = read(r->from, (char *)&got + count, sizeof got - count);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail_by_end(r, status, detail, size);
        count += (size_t)n;
    }
    if (got == r->asked) return true;
    return fail(status, CHECK_RUNTIME_ERROR, detail, size,
                "it wrote into the channel to the judge");
}

static bool ask(runner *r, verb verb, check_status *status, char *detail, size_t size)
{
    r->control->verb = verb;
    r->asked = r->asked * 6364136223846793005u +
               clock_ns(); /* so that the candidate cannot guess it in advance */
    if (write(r->to, &r->asked, sizeof r->asked) != sizeof r->asked)
        return fail_by_end(r, status, detail, size);
    return await(r, status, detail, size);
}

static bool start(runner *r, const op_case *about, check_status *status, char *detail, size_t size)
{
    int down[2], up[2];
    pid_t judge = getpid();
    if (pipe2(down, O_CLOEXEC) != 0)
        return fail(status, CHECK_RUNTIME_ERROR, detail, size, strerror(errno));
    if (pipe2(up, O_CLOEXEC) != 0) {
        close(down[0]);
        close(down[1]);
        return fail(status, CHECK_RUNTIME_ERROR, detail, size, strerror(errno));
    }
    r->child = fork();
    if (r->child == 0) serve(r, about, down[0], up[1], judge);
    close(down[0]);
    close(up[1]);
    r->to = down[1];
    r->from = up[0];
    if (r->child > 0) return true;
    r->child = 0;
    return fail(status, CHECK_RUNTIME_ERROR, detail, size, strerror(errno));
}

bool runner_open(const candidate *candidate, const op_case *about, int timeout_ms, runner **out,
                 bool *declined, check_status *status, char *detail, size_t size)
{
    runner *r = calloc(1, sizeof *r);
    *out = NULL;
    *declined = false;
    if (!r) return fail(status, CHECK_RUNTIME_ERROR, detail, size, "out of memory");
    *r = (runner){.candidate = candidate,
                  .to = -1,
                  .from = -1,
                  .asked = (uint64_t)(uintptr_t)r,
                  .timeout_ms = timeout_ms,
                  .deadline = clock_ns() + (uint64_t)timeout_ms * 1000000u};
    r->control =
        mmap(NULL, sizeof *r->control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->control == MAP_FAILED) r->control = NULL;
    bool open = r->control && start(r, about, status, detail, size) &&
                ask(r, VERB_LOAD, status, detail, size);
    if (open && r->control->failed) {
        char text[TEXT_SIZE];
        memcpy(text, r->control->text, sizeof text);
        text[sizeof text - 1] = '\0';
        *status = CHECK_COMPILE_ERROR;
        printable_copy(text, detail, size);
        open = false;
    }
    if (open) {
        *declined = r->control->declined;
        *out = r;
    } else {
        runner_close(r);
    }
    return open;
}

bool runner_run(void *context, const fixture *fixture, int n_threads, check_status *status,
                char *detail, size_t size)
{
    runner *r = context;
    r->control->call = fixture_call(fixture);
    r->control->scratch_stride = fixture->scratch_stride;
    r->control->n_threads = n_threads;
    return ask(r, VERB_RUN, status, detail, size);
}

bool runner_scratch_bytes(void *context, const fixture *fixture, uint64_t *bytes,
                          check_status *status, char *detail, size_t size)
{
    runner *r = context;
    r->control->call = fixture_call(fixture);
    if (!ask(r, VERB_SCRATCH, status, detail, size)) return false;
    *bytes = r->control->scratch_bytes;
    return true;
}

int runner_threads_left(runner *r)
{
    char path[64], detail[64];
    check_status status;
    int n = 0;
    if (r->candidate->cuda || !ask(r, VERB_REST, &status, detail, sizeof detail)) return 0;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)r->child);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return n > 1 ? n - 1 : 0;
}

void runner_close(runner *r)
{
    if (!r) return;
    if (r->to >= 0) close(r->to);
    if (r->from >= 0) close(r->from);
    if (r->child > 0) child_end_group(r->child);
    if (r->control) munmap(r->control, sizeof *r->control);
    free(r);
}
