/* --kernel: a command in a process of its own, with kernels from files in place of operators' own.
 *
 * The kernels are compiled and checked first, each case in a child of the workbench. Then this
 * process forks, before any thread or GPU exists: the child loads the kernels and runs the command,
 * and the parent waits for it. A kernel that crashes, ends the process or never returns ends the
 * child, and the parent says so.
 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/names.h"
#include "base/platform.h"
#include "base/status.h"
#include "workbench/kernel.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECK_MS = 60000, GRACE_MS = 1000, LOOK_MS = 200, END_MS = 2 };

/* --- the child ------------------------------------------------------------------------------- */

/* The kernels of a command, by the device that they are for. */
typedef struct loaded_kernels {
    qp_kernel *kernels;
    qp_cuda_kernel *cuda;
    size_t n_kernels, n_cuda;
} loaded_kernels;

static qp_status load_all(workbench_kernel *const *opened, size_t n, loaded_kernels *out,
                          qp_error *error)
{
    out->kernels = calloc(n, sizeof *out->kernels);
    out->cuda = calloc(n, sizeof *out->cuda);
    if (!out->kernels || !out->cuda) return error_no_memory(error, "kernels", n);
    for (size_t i = 0; i < n; i++) {
        if (workbench_kernel_is_cuda(opened[i]))
            TRY(workbench_kernel_load_cuda(opened[i], &out->cuda[out->n_cuda++], error));
        else
            TRY(workbench_kernel_load(opened[i], &out->kernels[out->n_kernels++], error));
    }
    return QP_OK;
}

/* A byte goes into `ended` when the command has ended by itself; the pipe closes in any case. */
static void run_child(const cli_call *call, cli_command *command, workbench_kernel *const *opened,
                      pid_t parent, int ended)
{
    loaded_kernels loaded = {0};
    cli_call with = *call;
    cli_release_endings();
    platform_end_with_parent(parent);
    qp_status status =
        load_all(opened, (size_t)call->settings->kernels.count, &loaded, call->error);
    with.kernels = loaded.kernels;
    with.n_kernels = loaded.n_kernels;
    with.cuda_kernels = loaded.cuda;
    with.n_cuda_kernels = loaded.n_cuda;
    if (status == QP_OK) status = command(&with);
    if (status == QP_OK) status = cli_flush(call->error);
    const bool reported = write(ended, "e", 1) == 1;
    int code = cli_end(status, call->error);
    free(loaded.kernels);
    free(loaded.cuda);
    _exit(reported ? code : 1);
}

/* --- the parent ------------------------------------------------------------------------------ */

/* How the child ended. */
typedef struct child_end {
    int status;  /* as from waitpid() */
    bool itself; /* the command had ended by itself */
    bool killed; /* a request to end was passed on to it, and it did not follow in time */
} child_end;

static child_end wait_for(pid_t child, int from)
{
    child_end end = {0};
    uint64_t deadline = 0;
    char byte;
    struct pollfd wait = {.fd = from, .events = POLLIN};
    while (waitpid(child, &end.status, WNOHANG) != child) {
        if (poll(&wait, 1, wait.fd < 0 ? END_MS : LOOK_MS) > 0 && read(from, &byte, 1) > 0)
            end.itself = true;
        else if (wait.revents)
            wait.fd = -1; /* closed: it is about to end */
        if (!cli_interrupted || end.killed) continue;
        if (deadline == 0) {
            deadline = clock_ns() + (uint64_t)GRACE_MS * 1000000u;
            kill(child, SIGINT);
        }
        end.killed = clock_ns() > deadline;
        if (end.killed) kill(child, SIGKILL);
    }
    if (wait.fd >= 0 && poll(&wait, 1, 0) > 0) end.itself |= read(from, &byte, 1) > 0;
    return end;
}

static void list_kernels(const cli_call *call, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < call->settings->kernels.count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 call->settings->kernels.items[i]);
}

/* What the child's end means for this process: an exit code, or an error. */
static qp_status judge_end(const cli_call *call, child_end end, int *code)
{
    char names[512];
    const int status = end.status;
    list_kernels(call, names, sizeof names);
    if (end.killed)
        return error_set(call->error, QP_FORMAT,
                         "the run did not end within %d s of the request to: a kernel among %s did "
                         "not return",
                         GRACE_MS / 1000, names);
    if (WIFEXITED(status) && end.itself) {
        *code = WEXITSTATUS(status);
        return QP_OK;
    }
    if (WIFEXITED(status))
        return error_set(call->error, QP_FORMAT,
                         "a kernel among %s ended the process with status %d in the middle of the "
                         "run",
                         names, WEXITSTATUS(status));
    const int number = WTERMSIG(status);
    if (number == SIGINT || number == SIGTERM || number == SIGPIPE || number == SIGHUP) {
        signal(number, SIG_DFL);
        raise(number);
    }
    return error_set(call->error, QP_FORMAT,
                     "the run was ended by signal %d (%s) while it used the kernels %s; without "
                     "--kernel quipu's own run",
                     number, strsignal(number), names);
}

/* A kernel for a GPU takes long to compile and check, so what excludes it is said before that. */
static qp_status check_device(const cli_call *call)
{
    const option_strings *given = &call->settings->kernels;
    for (int i = 0; i < given->count; i++) {
        if (!name_ends_with(given->items[i], ".cu")) continue;
        if (strcmp(cli_devices[call->settings->device], "cpu") == 0)
            return error_set(call->error, QP_INVALID,
                             "--kernel %.200s runs on a GPU, but --device cpu excludes that: leave "
                             "one out",
                             given->items[i]);
    }
    return QP_OK;
}

static qp_status open_all(const cli_call *call, workbench_kernel **opened)
{
    const option_strings *given = &call->settings->kernels;
    const workbench_kernel_options options = {
        .timeout_ms = CHECK_MS, .seed = 1, .cancel = &cli_interrupted, .progress = cli_line()};
    qp_status status = QP_OK;
    for (int i = 0; i < given->count && status == QP_OK; i++) {
        status = workbench_kernel_open(given->items[i], &options, &opened[i], call->error);
        if (options.progress) cli_show_line(NULL, "");
        if (status == QP_OK && call->settings->verbose)
            fprintf(stderr, "quipu: %s passed %d cases\n", given->items[i],
                    workbench_kernel_cases(opened[i]));
    }
    return status;
}

static qp_status run_beside(const cli_call *call, cli_command *command,
                            workbench_kernel *const *opened, int *code)
{
    int ends[2];
    if (platform_pipe(ends) != 0)
        return error_set(call->error, QP_IO, "no pipe can be made: %s", strerror(errno));
    fflush(NULL);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        close(ends[0]);
        run_child(call, command, opened, parent, ends[1]);
    }
    close(ends[1]);
    qp_status status =
        child < 0 ? error_set(call->error, QP_IO, "no process can be made: %s", strerror(errno))
                  : judge_end(call, wait_for(child, ends[0]), code);
    close(ends[0]);
    return status;
}

qp_status cli_run_with_kernels(const cli_call *call, cli_command *command, int *code)
{
    const int n = call->settings->kernels.count;
    workbench_kernel **opened = calloc((size_t)n, sizeof *opened);
    if (!opened) return error_no_memory(call->error, "kernels", (size_t)n * sizeof *opened);
    cli_catch_endings();
    qp_status status = check_device(call);
    if (status == QP_OK) status = open_all(call, opened);
    if (status == QP_OK) status = run_beside(call, command, opened, code);
    for (int i = 0; i < n; i++)
        workbench_kernel_close(opened[i]);
    free(opened);
    cli_release_endings();
    return status;
}
