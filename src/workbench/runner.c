/* Runs a candidate in a process of its own: see runner.h. */
#include "workbench/runner.h"

#include "base/platform.h"
#include "base/printable.h"
#include "workbench/dialogue.h"
#include "workbench/sandbox.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TEXT_SIZE = 400 };

typedef enum verb { VERB_LOAD, VERB_SCRATCH, VERB_RUN, VERB_REST } verb;

/* Shared memory: questions that the judge writes, and answers. The candidate's code may write here
 * too, so pointers are never read back, and every other value is checked. */
typedef struct control {
    op_call call;
    size_t scratch_stride;
    int n_threads;
    bool declined, failed;
    uint64_t scratch_bytes;
    char text[TEXT_SIZE]; /* why loading failed */
} control;

struct runner {
    const candidate *candidate;
    const op_case *about;
    dialogue dialogue;
    control *control;
};

/* --- The candidate's side. --- */

typedef struct loaded {
    const runner *runner;
    op_variant variant;
    thread_pool *pools[FIXTURE_WORKERS]; /* by their number of threads */
} loaded;

static thread_pool *pool_of(loaded *l, int n_threads)
{
    thread_pool **pool = &l->pools[n_threads];
    qp_error error;
    if (n_threads > 1 && !*pool && thread_pool_create(n_threads, pool, &error) != QP_OK) _exit(1);
    return *pool;
}

static void load(loaded *l, const op_case *about)
{
    control *c = l->runner->control;
    const candidate *candidate = l->runner->candidate;
    c->failed = !candidate_load(candidate, &l->variant, c->text, sizeof c->text);
    if (!c->failed) c->declined = !op_case_accepted(candidate->op, about, &l->variant);
}

static void obey(loaded *l, verb verb)
{
    control *c = l->runner->control;
    op_call call = c->call;
    switch (verb) {
    case VERB_LOAD:
        load(l, l->runner->about);
        break;
    case VERB_SCRATCH:
        c->scratch_bytes = l->variant.scratch_bytes ? l->variant.scratch_bytes(&call) : UINT64_MAX;
        break;
    case VERB_RUN:
        check_run_call(l->runner->candidate->op, l->variant.kernel, &call, c->scratch_stride,
                       c->n_threads, pool_of(l, c->n_threads));
        break;
    default:
        for (int i = 0; i < FIXTURE_WORKERS; i++) {
            thread_pool_destroy(l->pools[i]);
            l->pools[i] = NULL;
        }
    }
}

static void serve(void *context, int socket, int judge)
{
    const runner *r = context;
    loaded l = {.runner = r};
    dialogue_message asked;
    sandbox_enter(&(sandbox){.kind = candidate_sandbox(r->candidate),
                             .parent = judge,
                             .keep = {-1, socket},
                             .output = r->dialogue.output,
                             .cpu_seconds = r->dialogue.timeout_ms / 1000 + 1,
                             .file = r->candidate->library});
    while (dialogue_read(socket, &asked)) {
        obey(&l, (verb)asked.what);
        if (!dialogue_answer(socket, &asked, 0)) break;
    }
    _exit(0);
}

/* --- The judge's side. --- */

static bool ask(runner *r, verb verb, check_status *status, char *detail, size_t size)
{
    uint32_t ignored;
    return dialogue_ask(&r->dialogue, verb, 0, &ignored, status, detail, size);
}

bool runner_open(const candidate *candidate, const op_case *about, int timeout_ms, runner **out,
                 bool *declined, check_status *status, char *detail, size_t size)
{
    runner *r = calloc(1, sizeof *r);
    *out = NULL;
    *declined = false;
    *status = CHECK_RUNTIME_ERROR;
    snprintf(detail, size, "out of memory");
    if (!r) return false;
    *r = (runner){.candidate = candidate,
                  .about = about,
                  .dialogue = {.socket = -1, .output = -1, .printed = candidate->printed}};
    r->control =
        mmap(NULL, sizeof *r->control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->control == MAP_FAILED) r->control = NULL;
    bool open = r->control &&
                dialogue_start(&r->dialogue, serve, r, timeout_ms, candidate->cancel, status,
                               detail, size) &&
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
    char detail[64];
    check_status status;
    int n = 0;
    if (r->candidate->cuda || !ask(r, VERB_REST, &status, detail, sizeof detail)) return 0;
    DIR *folder = platform_threads(r->dialogue.child);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return n > 1 ? n - 1 : 0;
}

void runner_close(runner *r)
{
    if (!r) return;
    dialogue_end(&r->dialogue);
    if (r->control) munmap(r->control, sizeof *r->control);
    free(r);
}
