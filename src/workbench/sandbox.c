/* Restricts a process that runs untrusted code: see sandbox.h.
 *
 * The list of system calls is a list of refusals, because what a C library needs for memory and
 * threads differs between systems. It covers what matters: nothing of the process outlives its
 * parent's kill(), and it cannot affect another process.
 */
#define _GNU_SOURCE /* CLONE_THREAD */
#include "workbench/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__linux__) && defined(__x86_64__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#endif

enum { THREADS = 16, MOST_FILES = 65536 };

static void close_all(int first, int last)
{
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0) return;
    for (int fd = first; fd <= last && fd < MOST_FILES; fd++)
        close(fd);
}

void sandbox_enter(int parent, const int keep[2], int cpu_seconds)
{
    /* A signal handler that the parent installed would run in the child. */
    static const int defaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL,  SIGABRT,
                                   SIGSYS,  SIGINT, SIGHUP, SIGQUIT, SIGTERM};
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        signal(defaults[i], SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) raise(SIGKILL); /* the parent ended before the line above */
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    rlim_t seconds = (rlim_t)cpu_seconds * THREADS + 1;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setrlimit(RLIMIT_CPU, &(struct rlimit){seconds, seconds});
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    int low = keep[0] < keep[1] ? keep[0] : keep[1], high = keep[0] < keep[1] ? keep[1] : keep[0];
    if (low > STDERR_FILENO + 1) close_all(STDERR_FILENO + 1, low - 1);
    if (high > low + 1) close_all(low < 0 ? STDERR_FILENO + 1 : low + 1, high - 1);
    close_all(high < STDERR_FILENO ? STDERR_FILENO + 1 : high + 1, INT_MAX);
}

#if defined(__linux__) && defined(__x86_64__)

#define LOAD(field)                                                                                \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, field))
/* The lower half of an argument. */
#define LOAD_ARGUMENT(n)        LOAD(args[n])
#define ANSWER(what)            BPF_STMT(BPF_RET | BPF_K, (what))
#define REFUSE                  ANSWER(SECCOMP_RET_ERRNO | EPERM)
#define ALLOW                   ANSWER(SECCOMP_RET_ALLOW)
#define SKIP_UNLESS_EQUAL(k, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(k), 0, n)
#define SKIP_IF_ANY_BIT(k, n)   BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (unsigned)(k), n, 0)
#define FORBID(call)            SKIP_UNLESS_EQUAL(SYS_##call, 1), REFUSE

enum { WRITES = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, X32 = 0x40000000 };

void sandbox_forbid(void)
{
    const struct sock_filter rules[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        REFUSE,
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1),
        REFUSE,
        /* other processes */
        FORBID(fork),
        FORBID(vfork),
        FORBID(execve),
        FORBID(execveat),
        FORBID(kill),
        FORBID(tkill),
        FORBID(rt_sigqueueinfo),
        FORBID(rt_tgsigqueueinfo),
        FORBID(pidfd_open),
        FORBID(pidfd_send_signal),
        FORBID(ptrace),
        FORBID(process_vm_readv),
        FORBID(process_vm_writev),
        FORBID(setpgid),
        FORBID(setsid),
        FORBID(unshare),
        FORBID(setns),
        FORBID(bpf),
        FORBID(perf_event_open),
        FORBID(userfaultfd),
        FORBID(keyctl),
        FORBID(add_key),
        /* the network, and calls that could do the same indirectly */
        FORBID(socket),
        FORBID(io_uring_setup),
        /* files */
        FORBID(creat),
        FORBID(truncate),
        FORBID(unlink),
        FORBID(unlinkat),
        FORBID(rename),
        FORBID(renameat),
        FORBID(renameat2),
        FORBID(rmdir),
        FORBID(mkdir),
        FORBID(mkdirat),
        FORBID(link),
        FORBID(linkat),
        FORBID(symlink),
        FORBID(symlinkat),
        FORBID(mknod),
        FORBID(mknodat),
        FORBID(chmod),
        FORBID(fchmod),
        FORBID(fchmodat),
        FORBID(chown),
        FORBID(fchown),
        FORBID(lchown),
        FORBID(fchownat),
        FORBID(mount),
        FORBID(umount2),
        FORBID(chroot),
        FORBID(pivot_root),
        /* a C library falls back to clone() and openat() if these are unknown */
        SKIP_UNLESS_EQUAL(SYS_clone3, 1),
        ANSWER(SECCOMP_RET_ERRNO | ENOSYS),
        SKIP_UNLESS_EQUAL(SYS_openat2, 1),
        ANSWER(SECCOMP_RET_ERRNO | ENOSYS),
        /* threads, but no processes */
        SKIP_UNLESS_EQUAL(SYS_clone, 4),
        LOAD_ARGUMENT(0),
        SKIP_IF_ANY_BIT(CLONE_THREAD, 1),
        REFUSE,
        ALLOW,
        /* it cannot change that it dies with its parent */
        SKIP_UNLESS_EQUAL(SYS_prctl, 4),
        LOAD_ARGUMENT(0),
        SKIP_UNLESS_EQUAL(PR_SET_PDEATHSIG, 1),
        REFUSE,
        ALLOW,
        /* signals to itself, as abort() sends one */
        SKIP_UNLESS_EQUAL(SYS_tgkill, 4),
        LOAD_ARGUMENT(0),
        SKIP_UNLESS_EQUAL(getpid(), 1),
        ALLOW,
        REFUSE,
        /* files are opened only for reading */
        SKIP_UNLESS_EQUAL(SYS_open, 2),
        LOAD_ARGUMENT(1),
        BPF_JUMP(BPF_JMP | BPF_JA, 2, 0, 0),
        SKIP_UNLESS_EQUAL(SYS_openat, 4),
        LOAD_ARGUMENT(2),
        SKIP_IF_ANY_BIT(WRITES, 1),
        ALLOW,
        REFUSE,
        ALLOW,
    };
    const struct sock_fprog program = {sizeof rules / sizeof *rules, (struct sock_filter *)rules};
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

#else

void sandbox_forbid(void) {}

#endif
