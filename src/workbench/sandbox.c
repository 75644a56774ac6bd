/* Restricts a process that runs untrusted code: see sandbox.h. */
#define _GNU_SOURCE /* unshare, memfd_create */
#include "workbench/sandbox.h"

#include "base/platform.h"
#include "base/printable.h"
#include "base/threads.h"
#include "workbench/sandbox_files.h"
#include "workbench/sandbox_filter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

enum { THREADS = 16, MOST_FILES = 65536, OPEN_FILES = 256, COMPILER_PROCESSES = 64 };
enum { STACK_BYTES = 64 << 20, COMPILER_FILE_BYTES = 256 << 20, NOT_CONFINED = 126 };

static const uint64_t compiler_bytes = UINT64_C(2) << 30, kernel_bytes = UINT64_C(1) << 30;

extern char **environ;

#ifdef __linux__

/* By close_range(2), which older headers do not have. */
static bool close_at_once(int first, int last)
{
    enum { CLOSE_RANGE = 436 };
    return syscall(CLOSE_RANGE, first, last, 0) == 0;
}

static void give_up_privileges(void)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

void sandbox_hide(void)
{
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

#else

static bool close_at_once(int first, int last)
{
    (void)first, (void)last;
    return false;
}

static void give_up_privileges(void) {}

void sandbox_hide(void) {}

#endif

static void close_all(int first, int last)
{
    if (first > last || close_at_once(first, last)) return;
    for (int fd = first; fd <= last && fd < MOST_FILES; fd++)
        close(fd);
}

static void close_others(const int keep[2])
{
    int low = keep[0] < keep[1] ? keep[0] : keep[1], high = keep[0] < keep[1] ? keep[1] : keep[0];
    if (low > STDERR_FILENO + 1) close_all(STDERR_FILENO + 1, low - 1);
    if (high > low + 1) close_all(low < 0 ? STDERR_FILENO + 1 : low + 1, high - 1);
    close_all(high < STDERR_FILENO ? STDERR_FILENO + 1 : high + 1, INT_MAX);
}

/* A signal handler that the parent installed would run in the child. */
static void reset_signals(void)
{
    static const int defaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL,  SIGABRT,
                                   SIGSYS,  SIGINT, SIGHUP, SIGQUIT, SIGTERM};
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        signal(defaults[i], SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

static void limit(int resource, uint64_t most)
{
    struct rlimit now;
    rlim_t value = (rlim_t)most;
    if (getrlimit(resource, &now) == 0 && now.rlim_max < value) value = now.rlim_max;
    setrlimit(resource, &(struct rlimit){value, value});
}

static void enter(const sandbox *box)
{
    reset_signals();
    if (setsid() < 0) setpgid(0, 0); /* no terminal, and a group to end as one */
    platform_end_with_parent(box->parent);
    give_up_privileges();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, (uint64_t)box->cpu_seconds * THREADS + 1);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    if (box->output >= 0)
        dup2(box->output, STDERR_FILENO);
    else if (box->kind != SANDBOX_UNCONFINED)
        dup2(nothing, STDERR_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    close_others(box->keep);
}

/* --- what is printed ------------------------------------------------------------------------- */

int sandbox_output_open(void)
{
#ifdef __linux__
    return memfd_create("quipu-output", MFD_CLOEXEC);
#else
    return -1;
#endif
}

size_t sandbox_output_read(int output, char *text, size_t size)
{
    const ssize_t n = output >= 0 ? pread(output, text, size - 1, 0) : 0;
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

void sandbox_output_take(int output, strbuf *out)
{
    const bool wanted = output >= 0 && out && out->length < SANDBOX_OUTPUT_MOST;
    char *text = wanted ? malloc(SANDBOX_OUTPUT_MOST + 1) : NULL;
    if (text)
        strbuf_put_printable(out, text, sandbox_output_read(output, text, SANDBOX_OUTPUT_MOST + 1));
    free(text);
    if (output >= 0) close(output);
}

#ifdef __linux__

/* --- confinement ----------------------------------------------------------------------------- */

static void fail(const char *what)
{
    dprintf(STDERR_FILENO, "this process cannot be confined: %s: %s\n", what, strerror(errno));
    _exit(NOT_CONFINED);
}

/* Bytes of private memory that this process has now: its limit begins there. */
static uint64_t data_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*s %*s %*s %*s %*s %llu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t memory_of(uint64_t least)
{
    const uint64_t half = platform_free_memory() / 2;
    return half > least ? half : least;
}

static void limit_resources(const sandbox *box, bool own_namespace)
{
    limit(RLIMIT_NOFILE, OPEN_FILES);
    limit(RLIMIT_MEMLOCK, 0);
    limit(RLIMIT_MSGQUEUE, 0);
    limit(RLIMIT_RTPRIO, 0);
    if (box->kind == SANDBOX_COMPILER) {
        limit(RLIMIT_CPU, (uint64_t)box->cpu_seconds);
        limit(RLIMIT_FSIZE, COMPILER_FILE_BYTES);
        /* Elsewhere the limit would count all processes of the user. */
        if (own_namespace) limit(RLIMIT_NPROC, COMPILER_PROCESSES);
    } else {
        limit(RLIMIT_DATA, data_bytes() + memory_of(kernel_bytes));
        limit(RLIMIT_STACK, STACK_BYTES);
        limit(RLIMIT_FSIZE, SANDBOX_OUTPUT_MOST);
    }
}

/* A compiler's programs are the processes of a namespace, which ends with its first one: this
 * process forks that one, waits for it, and ends as it does. */
static void fork_first(void)
{
    int ends[2], status;
    if (pipe(ends) != 0) fail("a pipe");
    const pid_t first = fork();
    if (first < 0) fail("fork");
    if (first == 0) {
        close(ends[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct pollfd closed = {.fd = ends[0], .events = POLLIN};
        if (poll(&closed, 1, 0) != 0) _exit(NOT_CONFINED); /* the parent died before that */
        close(ends[0]);
        return;
    }
    close(ends[0]);
    dup2(STDIN_FILENO, STDOUT_FILENO);
    dup2(STDIN_FILENO, STDERR_FILENO);
    while (waitpid(first, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : NOT_CONFINED);
}

/* Namespaces without a network, messages of others, or (of a compiler) other processes. */
static bool leave_namespaces(bool compiler)
{
    const int kinds = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    if (compiler && unshare(kinds | CLONE_NEWPID) == 0) {
        fork_first();
        return true;
    }
    return unshare(kinds) == 0;
}

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &header, none) != 0) fail("capset");
}

/* A compiler gets a new environment; a kernel's is overwritten, because it may hold keys. */
static void replace_environment(const sandbox *box)
{
    static char path[4200], libraries[4200], folder[4200];
    static char *few[] = {path, libraries, folder, "LC_ALL=C", "CCACHE_DISABLE=1", NULL};
    const char *found = getenv("PATH"), *also = getenv("LD_LIBRARY_PATH");
    snprintf(path, sizeof path, "PATH=%.4100s", found ? found : "/usr/local/bin:/usr/bin:/bin");
    snprintf(libraries, sizeof libraries, "LD_LIBRARY_PATH=%.4100s", also ? also : "");
    snprintf(folder, sizeof folder, "TMPDIR=%.4100s", box->folder ? box->folder : "/nonexistent");
    for (char **variable = environ; variable && *variable; variable++)
        if (strncmp(*variable, "OMP_", 4) != 0) memset(*variable, 'x', strlen(*variable));
    if (box->kind == SANDBOX_COMPILER) environ = few;
}

static bool set_filter(int who)
{
    struct sock_filter rules[SANDBOX_FILTER_MOST];
    const int n = sandbox_filter_make(sandbox_native(), who, getpid(), rules);
    const struct sock_fprog program = {(unsigned short)n, rules};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

static void confine(const sandbox *box)
{
    const bool compiler = box->kind == SANDBOX_COMPILER;
    const bool own_namespace = leave_namespaces(compiler);
    limit_resources(box, own_namespace);
    drop_capabilities();
    if (!sandbox_restrict_files(box)) fail("Landlock");
    replace_environment(box);
    /* Of the program that takes this one's place, so this one may allocate nothing from here on. */
    if (compiler) limit(RLIMIT_DATA, compiler_bytes);
    if (!set_filter(compiler ? SANDBOX_TOOL : SANDBOX_CODE)) fail("seccomp");
}

static bool has_filter(void)
{
    return sandbox_native()->count > 0 && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

static bool namespaces_work(void)
{
    int status = 1;
    const pid_t child = fork();
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID) !=
              0);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

sandbox_features sandbox_examine(void)
{
    return (sandbox_features){
        .filter = has_filter(), .landlock = sandbox_landlock(), .namespaces = namespaces_work()};
}

#else

static void confine(const sandbox *box)
{
    (void)box;
    _exit(NOT_CONFINED);
}

static bool has_filter(void)
{
    return false;
}

sandbox_features sandbox_examine(void)
{
    return (sandbox_features){0};
}

#endif

void sandbox_enter(const sandbox *box)
{
    enter(box);
    if (box->kind != SANDBOX_UNCONFINED) confine(box);
}

bool sandbox_missing(char *why, size_t size)
{
    why[0] = '\0';
    if (!has_filter())
        snprintf(why, size, "this system has no filter of system calls (seccomp) that quipu knows");
    else if (sandbox_landlock() == 0)
        snprintf(why, size, "this kernel has no Landlock, so untrusted code could read your files");
    return why[0];
}
