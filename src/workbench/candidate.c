/* Compiles and loads candidates: see candidate.h. */
#include "workbench/candidate.h"

#include "base/clock.h"
#include "base/names.h"
#include "base/platform.h"
#include "base/strbuf.h"
#include "op/harness/case.h"
#include "op/harness/child.h"
#include "workbench/device.h"
#include "workbench/runner.h"
#include "workbench/sandbox.h"
#include "workbench/sources.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COMPILER_SECONDS = 120, COMPILER_LINES = 8, COMPILER_BYTES = 1 << 20 };

static qp_status write_text(const char *folder, const char *name, const char *text, qp_error *error)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    bool written = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0) written = false;
    return written ? QP_OK : error_set(error, QP_IO, "%s: %s", path, strerror(errno));
}

/* --- compiling ------------------------------------------------------------------------------- */

enum { MAX_WORDS = 32 };

/* Splits a line of words without quotes; the words point into it. */
static int split_words(char *line, char *words[MAX_WORDS])
{
    int n = 0;
    for (char *word = strtok(line, " "); word && n < MAX_WORDS - 8; word = strtok(NULL, " "))
        words[n++] = word;
    return n;
}

/* Reads the compiler's output until it ends, is cancelled, or exceeds its time. */
static void read_output(const candidate *candidate, int from, uint64_t deadline, strbuf *printed)
{
    char block[4096];
    for (;;) {
        uint64_t now = clock_ns();
        struct pollfd wait = {.fd = from, .events = POLLIN};
        if (now >= deadline || (candidate->cancel && *candidate->cancel)) return;
        if (poll(&wait, 1, (int)((deadline - now) / 1000000u) + 1) <= 0) continue;
        ssize_t n = read(from, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || printed->length > COMPILER_BYTES) return;
        strbuf_append(printed, block, (size_t)n);
    }
}

/* Runs words[], ended by NULL, on a source, and appends its output. False: it failed, or was
 * stopped. */
static bool run_compiler(const candidate *candidate, const char *path, char **words,
                         strbuf *printed)
{
    int ends[2], status = -1;
    pid_t parent = getpid();
    if (platform_pipe(ends) != 0) return false;
    pid_t child = fork();
    if (child == 0) {
        sandbox_enter(
            &(sandbox){.kind = candidate->unconfined ? SANDBOX_UNCONFINED : SANDBOX_COMPILER,
                       .parent = parent,
                       .keep = {-1, ends[1]},
                       .output = ends[1],
                       .cpu_seconds = COMPILER_SECONDS,
                       .file = path,
                       .folder = candidate->folder});
        execvp(words[0], words);
        dprintf(STDERR_FILENO, "%s cannot be started: %s\n", words[0], strerror(errno));
        _exit(127);
    }
    close(ends[1]);
    uint64_t deadline = clock_ns() + (uint64_t)COMPILER_SECONDS * 1000000000u;
    bool ended = false;
    if (child > 0) {
        read_output(candidate, ends[0], deadline, printed);
        uint64_t soon = clock_ns() + 1000000000u;
        ended = child_wait(child, soon, &status);
        if (!ended) child_end_group(child);
    }
    close(ends[0]);
    if (!ended) strbuf_printf(printed, "the compiler did not finish in %d s\n", COMPILER_SECONDS);
    return ended && status == 0;
}

/* The first lines of a text. */
static int first_lines(const char *text, int lines)
{
    const char *at = text;
    while (lines-- > 0 && *at) {
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return (int)(at - text);
}

static void refuse(candidate *out, const char *text)
{
    out->verdict.status = CHECK_COMPILE_ERROR;
    snprintf(out->verdict.detail, sizeof out->verdict.detail, "%.*s",
             first_lines(text, COMPILER_LINES), text);
    size_t length = strlen(out->verdict.detail);
    while (length > 0 && out->verdict.detail[length - 1] == '\n')
        out->verdict.detail[--length] = '\0';
}

/* Compiles `path` with the words of `flags`. */
static void compile(candidate *out, const char *compiler, const char *flags, const char *path,
                    const char *more)
{
    char line[256], *words[MAX_WORDS], include[80];
    snprintf(line, sizeof line, "%s %s", compiler, flags);
    snprintf(include, sizeof include, "-I%s", out->folder);
    snprintf(out->library, sizeof out->library, "%s/%s.so", out->folder,
             out->op ? out->op->name : "function");
    int n = split_words(line, words);
    words[n++] = include;
    words[n++] = (char *)path;
    if (more) words[n++] = (char *)more;
    words[n++] = "-o";
    words[n++] = out->library;
    words[n++] = "-lm";
    words[n] = NULL;
    size_t used = 0;
    for (int i = 0; i < n && used < sizeof out->command; i++)
        used += (size_t)snprintf(out->command + used, sizeof out->command - used, "%s%s",
                                 i ? " " : "", words[i]);
    strbuf printed = {0};
    if (!run_compiler(out, path, words, &printed))
        refuse(out, printed.length ? strbuf_text(&printed) : "the compiler did not finish");
    strbuf_free(&printed);
}

static qp_status compile_c(candidate *out, const char *path, qp_error *error)
{
    TRY(write_text(out->folder, "quipu_kernel.h", embedded_find("include/quipu_kernel.h")->text,
                   error));
    compile(out, "cc", CANDIDATE_FLAGS_C, path, NULL);
    return QP_OK;
}

/* Compiles, for a .cu file, also a kernel that copies the tensors to the device and calls the
 * launcher. */
static qp_status compile_cuda(candidate *out, const char *path, qp_error *error)
{
    TRY(device_is_here(path, error));
    out->cuda = true;
    TRY(write_text(out->folder, "quipu_kernel.h", embedded_find("include/quipu_kernel.h")->text,
                   error));
    strbuf shim = {0};
    strbuf_printf(&shim,
                  "#define LAUNCH %s_launch\n#define KERNEL %s_kernel\n"
                  "#define SCRATCH_BYTES %s_scratch_bytes\n#define START %s_start\n",
                  out->op->name, out->op->name, out->op->name, out->op->name);
    strbuf_puts(&shim, embedded_find("src/workbench/device_kernel.cu")->text);
    qp_status status = write_text(out->folder, "device_kernel.cu", strbuf_text(&shim), error);
    strbuf_free(&shim);
    TRY(status);
    char more[128];
    snprintf(more, sizeof more, "%s/device_kernel.cu", out->folder);
    compile(out, "nvcc", CANDIDATE_FLAGS_CU, path, more);
    return QP_OK;
}

sandbox_kind candidate_sandbox(const candidate *candidate)
{
    return candidate->unconfined ? SANDBOX_UNCONFINED : SANDBOX_KERNEL;
}

/* What cannot be confined runs only if the user says so. */
static qp_status check_confinement(const char *path, bool cuda, bool unconfined, qp_error *error)
{
    char why[160];
    if (unconfined) return QP_OK;
    if (cuda)
        snprintf(why, sizeof why, "a kernel in CUDA needs the GPU's driver");
    else if (!sandbox_missing(why, sizeof why))
        return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "%.300s cannot be confined: %s; read the code, then give --unconfined to run it "
        "with your rights",
        path, why);
}

qp_status candidate_open(const op_info *op, const char *path, bool unconfined,
                         const volatile int *cancel, candidate *out, qp_error *error)
{
    *out = (candidate){
        .op = op, .cancel = cancel, .unconfined = unconfined, .verdict.status = CHECK_PASSED};
    sandbox_hide();
    if (access(path, R_OK) != 0)
        return error_set(error, QP_IO, "%s cannot be read: %s", path, strerror(errno));
    const bool cuda = op && name_ends_with(path, ".cu");
    TRY(check_confinement(path, cuda, unconfined, error));
    if (name_ends_with(path, ".so")) {
        if (!realpath(path, out->library))
            return error_set(error, QP_IO, "%s: %s", path, strerror(errno));
        return QP_OK;
    }
    if (!cuda && !name_ends_with(path, ".c"))
        return error_set(error, QP_INVALID, "%s: a kernel's file ends in .c%s", path,
                         op ? ", .cu or .so" : "");
    snprintf(out->folder, sizeof out->folder, "/tmp/quipu-XXXXXX");
    if (!mkdtemp(out->folder)) {
        out->folder[0] = '\0';
        return error_set(error, QP_IO, "no folder can be made in /tmp: %s", strerror(errno));
    }
    qp_status status = cuda ? compile_cuda(out, path, error) : compile_c(out, path, error);
    if (status != QP_OK) candidate_close(out);
    return status;
}

void candidate_close(candidate *candidate)
{
    if (!candidate->folder[0]) return;
    DIR *folder = opendir(candidate->folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] != '.') unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder) closedir(folder);
    rmdir(candidate->folder);
    candidate->folder[0] = '\0';
}

/* --- loading --------------------------------------------------------------------------------- */

/* A symbol "NAME_ending"; NULL when there is none. */
static void *find_symbol(void *library, const op_info *op, const char *ending)
{
    char name[128];
    snprintf(name, sizeof name, "%s_%s", op->name, ending);
    return dlsym(library, name);
}

bool candidate_load(const candidate *candidate, op_variant *out, char *message, size_t size)
{
    *out = (op_variant){.name = "candidate"};
    void *library = dlopen(candidate->library, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(message, size, "%s", dlerror());
        return false;
    }
    void *kernel = find_symbol(library, candidate->op, "kernel");
    void *accepts = find_symbol(library, candidate->op, "accepts");
    void *scratch = find_symbol(library, candidate->op, "scratch_bytes");
    if (!kernel) {
        snprintf(message, size, "it does not export void %s_kernel(const op_call *call)",
                 candidate->op->name);
        return false;
    }
    /* POSIX allows a function pointer to be read from dlsym(); ISO C has no cast for it. */
    memcpy(&out->kernel, &kernel, sizeof kernel);
    memcpy(&out->accepts, &accepts, sizeof accepts);
    memcpy(&out->scratch_bytes, &scratch, sizeof scratch);
    return true;
}

bool candidate_load_launcher(const candidate *candidate,
                             void (**out)(const op_call *call, cuda_stream stream), char *message,
                             size_t size)
{
    void *library = dlopen(candidate->library, RTLD_NOW | RTLD_LOCAL);
    void *launcher = library ? find_symbol(library, candidate->op, "launch") : NULL;
    if (!library)
        snprintf(message, size, "%s", dlerror());
    else if (!launcher)
        snprintf(message, size, "it does not export %s_launch", candidate->op->name);
    memcpy(out, &launcher, sizeof launcher);
    return launcher;
}

bool candidate_load_cuda(const candidate *candidate, qp_cuda_kernel *out, char *message,
                         size_t size)
{
    op_variant variant;
    *out = (qp_cuda_kernel){.op = candidate->op->name};
    if (!candidate_load(candidate, &variant, message, size)) return false;
    void *library = dlopen(candidate->library, RTLD_NOW | RTLD_LOCAL);
    void *start = library ? find_symbol(library, candidate->op, "start") : NULL;
    memcpy(&out->launch, &start, sizeof start);
    out->accepts = variant.accepts;
    out->scratch_bytes = variant.scratch_bytes;
    if (!start) snprintf(message, size, "it does not export %s_launch", candidate->op->name);
    return start;
}

int candidate_threads(DIR *tasks)
{
    int n = 0;
    rewinddir(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));)
        n += entry->d_name[0] != '.';
    return n;
}

/* --- checking -------------------------------------------------------------------------------- */

typedef struct check_context {
    const candidate *candidate;
    const op_case *about;
    int timeout_ms;
    runner *runner;
    bool declined;
} check_context;

static bool begin(void *context, check_status *status, char *detail, size_t size)
{
    check_context *c = context;
    if (!runner_open(c->candidate, c->about, c->timeout_ms, &c->runner, &c->declined, status,
                     detail, size))
        return false;
    return !c->declined;
}

static bool run(void *context, const fixture *fixture, int n_threads, check_status *status,
                char *detail, size_t size)
{
    check_context *c = context;
    return runner_run(c->runner, fixture, n_threads, status, detail, size);
}

static bool scratch_bytes(void *context, const fixture *fixture, uint64_t *bytes,
                          check_status *status, char *detail, size_t size)
{
    check_context *c = context;
    return runner_scratch_bytes(c->runner, fixture, bytes, status, detail, size);
}

static void check(const candidate *candidate, const char *case_text, bool is_brief, uint64_t seed,
                  int timeout_ms, check_verdict *verdict, bool *declined)
{
    op_case about;
    qp_error error;
    *declined = false;
    if (op_case_parse(candidate->op, case_text, &about, &error) != QP_OK) {
        *verdict = (check_verdict){.status = CHECK_INCORRECT_SHAPE};
        snprintf(verdict->detail, sizeof verdict->detail, "%.500s", error.message);
        return;
    }
    static const op_variant variant = {.name = "candidate"};
    check_context context = {candidate, &about, timeout_ms, NULL, false};
    check_runner runner = {.run = run,
                           .scratch_bytes = scratch_bytes,
                           .begin = begin,
                           .context = &context,
                           .is_elsewhere = true,
                           .is_brief = is_brief};
    check_kernel(candidate->op, &variant, &runner, about.text, seed, verdict);
    *declined = context.declined;
    if (context.declined) *verdict = (check_verdict){.status = CHECK_PASSED};
    int left = verdict->status == CHECK_PASSED && !context.declined
                   ? runner_threads_left(context.runner)
                   : 0;
    runner_close(context.runner);
    if (left == 0) return;
    verdict->status = CHECK_RUNTIME_ERROR;
    snprintf(verdict->detail, sizeof verdict->detail,
             "%.300s: %d threads of its own were left running", about.text, left);
}

void candidate_check(const candidate *candidate, const char *case_text, uint64_t seed,
                     int timeout_ms, check_verdict *verdict, bool *declined)
{
    check(candidate, case_text, false, seed, timeout_ms, verdict, declined);
}

void candidate_check_briefly(const candidate *candidate, const char *case_text, uint64_t seed,
                             int timeout_ms, check_verdict *verdict, bool *declined)
{
    check(candidate, case_text, true, seed, timeout_ms, verdict, declined);
}

void candidate_check_all(const candidate *candidate, uint64_t seed, int timeout_ms,
                         check_verdict *verdict, int *n_passed)
{
    *n_passed = 0;
    *verdict = (check_verdict){.status = CHECK_PASSED};
    for (const char *const *text = candidate->op->cases; text && *text; text++) {
        bool declined;
        if (candidate->cancel && *candidate->cancel) return;
        candidate_check(candidate, *text, seed, timeout_ms, verdict, &declined);
        if (verdict->status != CHECK_PASSED) return;
        *n_passed += !declined;
    }
    if (*n_passed > 0) return;
    verdict->status = CHECK_RUNTIME_ERROR;
    snprintf(verdict->detail, sizeof verdict->detail, "%s_accepts() declines every case",
             candidate->op->name);
}
