/* The sandbox: every system call of x86-64 and aarch64, and code and compilers that try to get out.
 */
#define _GNU_SOURCE /* clone, unshare, memfd_create, pipe2 */
#include "test.h"

#include "op/table.h"
#include "workbench/candidate.h"
#include "workbench/sandbox.h"
#include "workbench/sandbox_filter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- every system call ----------------------------------------------------------------------- */

/* What the two kinds of processes may call with any arguments, or with some. */
static const char both[] =
    " munmap mprotect mremap madvise brk membarrier set_robust_list set_tid_address rseq futex "
    "sched_yield sched_getaffinity getcpu exit exit_group rt_sigaction rt_sigprocmask rt_sigreturn "
    "sigaltstack restart_syscall clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday "
    "times getrusage getpid getppid gettid getuid geteuid getgid getegid uname sysinfo getrandom "
    "read readv pread64 write writev lseek close dup dup3 fstat newfstatat statx faccessat "
    "faccessat2 readlinkat getdents64 getcwd ppoll arch_prctl time stat lstat access readlink poll "
    "dup2 getrlimit mmap clone sched_setaffinity prctl prlimit64 openat open fcntl ioctl ";
static const char code[] = " tgkill ";
static const char tool[] = " execve wait4 waitid pipe2 pwrite64 ftruncate fallocate fadvise64 "
                           "unlinkat renameat renameat2 umask fork vfork pipe unlink rename ";

static bool is_listed(const char *list, const char *name)
{
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(list, word);
}

/* What the kernel would do with a filter of ours. */
static unsigned run_filter(const struct sock_filter *rules, int n, const struct seccomp_data *data)
{
    unsigned a = 0;
    for (int at = 0; at < n; at++) {
        const struct sock_filter *r = &rules[at];
        switch (r->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            assert_in_range(r->k, 0, sizeof *data - 4);
            memcpy(&a, (const char *)data + r->k, 4);
            break;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= r->k;
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            at += a == r->k ? r->jt : r->jf;
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            at += a & r->k ? r->jt : r->jf;
            break;
        case BPF_RET | BPF_K:
            return r->k;
        default:
            fail_msg("statement %d has code %x", at, r->code);
        }
    }
    fail_msg("the filter ends without an answer");
    return 0;
}

static unsigned ask(const sandbox_machine *machine, int who, long number, const uint64_t args[6])
{
    struct sock_filter rules[SANDBOX_FILTER_MOST];
    struct seccomp_data data = {.nr = (int)number, .arch = machine->audit_arch};
    memcpy(data.args, args, sizeof data.args);
    return run_filter(rules, sandbox_filter_make(machine, who, 4711, rules), &data);
}

static const char *name_of(const sandbox_machine *machine, int number)
{
    for (int i = 0; i < machine->count; i++)
        if (machine->calls[i].number == number) return machine->calls[i].name;
    return "none";
}

/* Numbers that pass with some arguments are those of the lists above, and no others. */
static void only_listed_calls_pass(void **state)
{
    (void)state;
    static const sandbox_machine *const machines[] = {&sandbox_x86_64, &sandbox_aarch64};
    static const uint64_t tries[][6] = {{0},           {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull},
                                        {4711},        {CLONE_THREAD | CLONE_VM},
                                        {PR_SET_NAME}, {0, F_GETFD},
                                        {0, 0x5401},   {0, 0, 0, MAP_PRIVATE}};
    for (int m = 0; m < 2; m++) {
        for (int who = SANDBOX_CODE; machines[m]->count && who <= SANDBOX_TOOL; who++) {
            for (int number = -1; number < 1100; number++) {
                const char *name = name_of(machines[m], number);
                const bool expected =
                    is_listed(both, name) || is_listed(who == SANDBOX_CODE ? code : tool, name);
                bool passes = false;
                for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
                    const unsigned got = ask(machines[m], who, number, tries[i]);
                    if (got == SECCOMP_RET_ALLOW)
                        passes = true;
                    else if (number == 435 || number == 437)
                        assert_int_equal(got, SECCOMP_RET_ERRNO | ENOSYS);
                    else
                        assert_int_equal(got, SECCOMP_RET_ERRNO | EPERM);
                }
                if (passes != expected)
                    fail_msg("machine %d, kind %d: call %d (%s) %s", m, who, number, name,
                             passes ? "passes" : "is refused");
            }
            /* x32's numbers, and the calls of another machine */
            assert_int_equal(ask(machines[m], who, 0x40000000, tries[0]),
                             SECCOMP_RET_ERRNO | EPERM);
            sandbox_machine other = *machines[m];
            struct sock_filter rules[SANDBOX_FILTER_MOST];
            struct seccomp_data data = {.nr = machines[m]->calls[0].number,
                                        .arch = AUDIT_ARCH_I386};
            assert_int_equal(run_filter(rules, sandbox_filter_make(&other, who, 1, rules), &data),
                             SECCOMP_RET_ERRNO | EPERM);
        }
    }
}

static void numbers_are_those_of_the_machines(void **state)
{
    (void)state;
    assert_string_equal(name_of(&sandbox_aarch64, 63), "read");
    assert_string_equal(name_of(&sandbox_aarch64, 56), "openat");
    assert_string_equal(name_of(&sandbox_aarch64, 220), "clone");
    assert_string_equal(name_of(&sandbox_aarch64, 94), "exit_group");
    if (sandbox_x86_64.count == 0) skip_because("this system has no names of the calls of x86-64");
    assert_string_equal(name_of(&sandbox_x86_64, 0), "read");
    assert_string_equal(name_of(&sandbox_x86_64, 257), "openat");
    assert_string_equal(name_of(&sandbox_x86_64, 56), "clone");
    assert_string_equal(name_of(&sandbox_x86_64, 231), "exit_group");
}

static int number_of(const sandbox_machine *machine, const char *name)
{
    for (int i = 0; i < machine->count; i++)
        if (strcmp(machine->calls[i].name, name) == 0) return machine->calls[i].number;
    return -1;
}

static void arguments_decide(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int who;
        uint64_t args[6];
        bool passes;
    } calls[] = {
        {"clone", SANDBOX_CODE, {CLONE_VM | CLONE_THREAD | CLONE_SIGHAND}, true},
        {"clone", SANDBOX_CODE, {SIGCHLD}, false},
        {"clone", SANDBOX_CODE, {CLONE_THREAD | CLONE_NEWUSER}, false},
        {"clone", SANDBOX_CODE, {CLONE_THREAD | CLONE_NEWNET}, false},
        {"clone", SANDBOX_TOOL, {SIGCHLD}, true},
        {"clone", SANDBOX_TOOL, {CLONE_NEWUSER | SIGCHLD}, false},
        {"clone", SANDBOX_TOOL, {CLONE_PARENT | SIGCHLD}, false},
        {"tgkill", SANDBOX_CODE, {4711, 1, SIGABRT}, true},
        {"tgkill", SANDBOX_CODE, {4712, 1, SIGABRT}, false},
        {"openat", SANDBOX_CODE, {0, 0, O_RDONLY | O_CLOEXEC}, true},
        {"openat", SANDBOX_CODE, {0, 0, O_WRONLY}, false},
        {"openat", SANDBOX_CODE, {0, 0, O_RDWR}, false},
        {"openat", SANDBOX_CODE, {0, 0, O_CREAT}, false},
        {"openat", SANDBOX_CODE, {0, 0, O_TRUNC}, false},
        {"openat", SANDBOX_CODE, {0, 0, O_ASYNC}, false},
        {"openat", SANDBOX_TOOL, {0, 0, O_WRONLY | O_CREAT}, true},
        {"mmap", SANDBOX_CODE, {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS}, true},
        {"mmap", SANDBOX_CODE, {0, 4096, 1, MAP_SHARED}, true},
        {"mmap", SANDBOX_CODE, {0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS}, false},
        {"mmap", SANDBOX_CODE, {0, 4096, 3, MAP_SHARED_VALIDATE | MAP_ANONYMOUS}, false},
        {"mmap", SANDBOX_CODE, {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN}, false},
        {"prlimit64", SANDBOX_CODE, {0, RLIMIT_CPU, 0, 1}, true},
        {"prlimit64", SANDBOX_CODE, {1, RLIMIT_CPU, 0, 1}, false},
        {"prlimit64", SANDBOX_CODE, {0, RLIMIT_CPU, 1, 0}, false},
        {"prlimit64", SANDBOX_CODE, {0, RLIMIT_CPU, UINT64_C(1) << 32, 0}, false},
        {"prlimit64", SANDBOX_TOOL, {0, RLIMIT_STACK, 1, 0}, true},
        {"prlimit64", SANDBOX_TOOL, {1, RLIMIT_STACK, 1, 0}, false},
        {"sched_setaffinity", SANDBOX_CODE, {0}, true},
        {"sched_setaffinity", SANDBOX_CODE, {1}, false},
        {"prctl", SANDBOX_CODE, {PR_SET_NAME}, true},
        {"prctl", SANDBOX_CODE, {PR_SET_PDEATHSIG}, false},
        {"prctl", SANDBOX_CODE, {PR_SET_DUMPABLE, 1}, false},
        {"fcntl", SANDBOX_CODE, {0, F_DUPFD_CLOEXEC}, true},
        {"fcntl", SANDBOX_CODE, {0, F_SETOWN}, false},
        {"fcntl", SANDBOX_CODE, {0, 10 /* F_SETSIG */}, false},
        {"fcntl", SANDBOX_CODE, {0, F_SETFL, O_ASYNC}, false},
        {"fcntl", SANDBOX_CODE, {0, 1024 /* F_SETLEASE */}, false},
        {"ioctl", SANDBOX_CODE, {0, 0x5401}, true},
        {"ioctl", SANDBOX_CODE, {0, 0x5412 /* TIOCSTI */}, false},
        {"ioctl", SANDBOX_CODE, {0, 0x541c /* TIOCLINUX */}, false},
    };
    static const sandbox_machine *const machines[] = {&sandbox_x86_64, &sandbox_aarch64};
    for (int m = 0; m < 2; m++) {
        for (size_t i = 0; machines[m]->count && i < sizeof calls / sizeof *calls; i++) {
            const int number = number_of(machines[m], calls[i].name);
            const bool passes =
                ask(machines[m], calls[i].who, number, calls[i].args) == SECCOMP_RET_ALLOW;
            if (passes != calls[i].passes)
                fail_msg("machine %d, line %zu: %s is %s", m, i, calls[i].name,
                         passes ? "allowed" : "refused");
        }
    }
}

/* --- code that tries to get out -------------------------------------------------------------- */

static char folder[] = "/tmp/quipu-sandbox-XXXXXX", secret[64], made[64];
static pid_t victim, judge;
static int inherited; /* an open file of the judge */

static void at(const char *name, char path[64])
{
    snprintf(path, 64, "%s/%s", folder, name);
}

/* Runs a function in a confined child; its result, or -1 where the child was ended. */
static int run_confined(int (*attack)(void))
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        const int nothing = open("/dev/null", O_WRONLY);
        sandbox_enter(&(sandbox){.kind = SANDBOX_KERNEL,
                                 .parent = judge,
                                 .keep = {-1, -1},
                                 .output = nothing,
                                 .cpu_seconds = 5});
        _exit(attack());
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define SYSCALL(name, ...)                                                                         \
    static int try_##name(void)                                                                    \
    {                                                                                              \
        return syscall(SYS_##name, __VA_ARGS__) >= 0;                                              \
    }

static const struct timespec moments[2];
static const struct sched_param lowest;
static char handle[160] = {16};
static int mount_id;
static const char bytes[16];
static struct iovec local = {(void *)bytes, 8}, remote = {(void *)bytes, 8};

SYSCALL(execve, "/bin/true", NULL, NULL)
SYSCALL(execveat, AT_FDCWD, "/bin/true", NULL, NULL, 0)
SYSCALL(kill, victim, 0)
SYSCALL(tkill, victim, 0)
SYSCALL(tgkill, victim, victim, 0)
SYSCALL(rt_sigqueueinfo, victim, 0, bytes)
SYSCALL(ptrace, PTRACE_ATTACH, judge, 0, 0)
SYSCALL(process_vm_readv, judge, &local, 1, &remote, 1, 0)
SYSCALL(process_vm_writev, judge, &local, 1, &remote, 1, 0)
SYSCALL(pidfd_open, judge, 0)
SYSCALL(sched_setaffinity, judge, sizeof bytes, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
SYSCALL(setpriority, PRIO_PROCESS, judge, 1)
SYSCALL(sched_setscheduler, 0, SCHED_BATCH, &lowest)
SYSCALL(ioprio_set, 1, 0, 0)
SYSCALL(socket, AF_INET, SOCK_STREAM, 0)
SYSCALL(socketpair, AF_UNIX, SOCK_DGRAM, 0, (int[2]){0})
SYSCALL(memfd_create, "x", 0)
SYSCALL(unlinkat, AT_FDCWD, secret, 0)
SYSCALL(renameat2, AT_FDCWD, secret, AT_FDCWD, made, 0)
SYSCALL(linkat, AT_FDCWD, secret, AT_FDCWD, made, 0)
SYSCALL(symlinkat, secret, AT_FDCWD, made)
SYSCALL(mkdirat, AT_FDCWD, made, 0700)
SYSCALL(mknodat, AT_FDCWD, made, S_IFIFO | 0600, 0)
SYSCALL(fchmodat, AT_FDCWD, secret, 0777)
SYSCALL(fchownat, AT_FDCWD, secret, getuid(), getgid(), 0)
SYSCALL(utimensat, AT_FDCWD, secret, moments, 0)
SYSCALL(setxattr, secret, "user.x", "y", 1, 0)
SYSCALL(truncate, secret, 0)
SYSCALL(name_to_handle_at, AT_FDCWD, secret, handle, &mount_id, 0)
SYSCALL(open_by_handle_at, AT_FDCWD, handle, O_RDWR)
SYSCALL(mq_open, "/quipu-test", O_CREAT | O_RDWR, 0600, NULL)
SYSCALL(shmget, 0x4834, 4096, 01600)
SYSCALL(semget, 0x4834, 1, 01600)
SYSCALL(msgget, 0x4834, 01600)
SYSCALL(io_uring_setup, 1, (char[120]){0})
SYSCALL(bpf, 0, (char[128]){0}, 128)
SYSCALL(perf_event_open, (char[128]){0}, 0, -1, -1, 0)
SYSCALL(userfaultfd, 0)
SYSCALL(add_key, "user", "quipu", "x", 1, -2)
SYSCALL(keyctl, 0, -2, 1)
SYSCALL(unshare, 0)
SYSCALL(setns, 0, 0)
SYSCALL(chroot, "/")
SYSCALL(chdir, "/")
SYSCALL(mount, "none", "/mnt", "tmpfs", 0, NULL)
SYSCALL(setsid, 0)
SYSCALL(setpgid, 0, 0)
SYSCALL(setuid, getuid())
SYSCALL(setgroups, 0, NULL)
SYSCALL(personality, 0)
SYSCALL(sethostname, "x", 1)
SYSCALL(inotify_init1, 0)
SYSCALL(timer_create, 0, NULL, &mount_id)
SYSCALL(mlock, bytes, 16)
SYSCALL(sync, 0)
SYSCALL(clock_adjtime, 0, (char[256]){0})
SYSCALL(seccomp, 0, 0, NULL)
SYSCALL(landlock_create_ruleset, NULL, 0, 1)

static int try_fork(void)
{
    const pid_t child = fork();
    if (child == 0) _exit(0);
    return child > 0;
}

static int try_signal_by_owner(void)
{
    return fcntl(0, F_SETOWN, victim) == 0 || fcntl(0, F_SETSIG, SIGKILL) == 0 ||
           fcntl(0, F_SETFL, O_ASYNC) == 0;
}

static int try_judges_limits(void)
{
    struct rlimit old;
    return syscall(SYS_prlimit64, judge, RLIMIT_NOFILE, NULL, &old) == 0;
}

static int try_own_limits(void)
{
    return setrlimit(RLIMIT_CPU, &(struct rlimit){1, 1}) == 0;
}

static int can_open(const char *path, int flags)
{
    return open(path, flags, 0600) >= 0;
}

static int try_judges_memory(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", judge);
    return can_open(path, O_RDONLY);
}

static int try_secret(void)
{
    return can_open(secret, O_RDONLY);
}

static int try_folder(void)
{
    return opendir(folder) || opendir("/root") || opendir("/home") || opendir("/proc");
}

static int try_passwords(void)
{
    return can_open("/etc/passwd", O_RDONLY) || can_open("/proc/self/environ", O_RDONLY) ||
           can_open("/proc/self/mem", O_RDONLY);
}

static int try_new_file(void)
{
    return can_open(made, O_WRONLY | O_CREAT) || can_open(made, O_RDWR | O_CREAT) ||
           can_open("/tmp", O_TMPFILE | O_RDWR) || can_open("/dev/shm/quipu-x", O_CREAT | O_RDWR);
}

static int try_terminal(void)
{
    const char c = '#';
    return can_open("/dev/tty", O_RDONLY) || ioctl(STDERR_FILENO, TIOCSTI, &c) == 0;
}

static int try_inherited(void)
{
    return write(inherited, "x", 1) == 1;
}

static int try_environment(void)
{
    const char *key = getenv("QUIPU_TEST_KEY");
    return key && strcmp(key, "sesame") == 0;
}

static int try_not_to_die(void)
{
    return prctl(PR_SET_PDEATHSIG, 0) == 0 || prctl(PR_SET_DUMPABLE, 1) == 0;
}

static int try_memory(void)
{
    const size_t much = (size_t)1 << 43;
    return mmap(NULL, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0) != MAP_FAILED ||
           mmap(NULL, much, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0) != MAP_FAILED;
}

static int try_many_files(void)
{
    int n = 0;
    while (dup(0) >= 0 && n < 100000)
        n++;
    return n > 1000;
}

static int try_capabilities(void)
{
    return prctl(PR_CAPBSET_READ, 0, 0, 0, 0) == 1 || syscall(SYS_capset, bytes, NULL) == 0;
}

/* Every call that the list does not have, with arguments that do no harm. */
static int try_all_numbers(void)
{
    const sandbox_machine *native = sandbox_native();
    for (int number = 0; number < 1100; number++) {
        if (strcmp(name_of(native, number), "none") != 0) continue;
        if (native == &sandbox_x86_64 && (number == 335 || number == 336))
            continue; /* uprobes: SIGILL */
        errno = 0;
        if (syscall(number, -1, -1, -1, -1, -1, -1) != -1) return 1;
        if (errno != (number == 435 || number == 437 ? ENOSYS : EPERM)) return 1;
    }
    return 0;
}

#define ATTACK(name)                                                                               \
    {                                                                                              \
#name, try_##name                                                                          \
    }

static const struct {
    const char *name;
    int (*run)(void);
} attacks[] = {
    ATTACK(fork),
    ATTACK(execve),
    ATTACK(execveat),
    ATTACK(kill),
    ATTACK(tkill),
    ATTACK(tgkill),
    ATTACK(rt_sigqueueinfo),
    ATTACK(signal_by_owner),
    ATTACK(ptrace),
    ATTACK(process_vm_readv),
    ATTACK(process_vm_writev),
    ATTACK(pidfd_open),
    ATTACK(judges_limits),
    ATTACK(own_limits),
    ATTACK(sched_setaffinity),
    ATTACK(setpriority),
    ATTACK(sched_setscheduler),
    ATTACK(ioprio_set),
    ATTACK(judges_memory),
    ATTACK(socket),
    ATTACK(socketpair),
    ATTACK(memfd_create),
    ATTACK(secret),
    ATTACK(folder),
    ATTACK(passwords),
    ATTACK(new_file),
    ATTACK(terminal),
    ATTACK(inherited),
    ATTACK(environment),
    ATTACK(not_to_die),
    ATTACK(memory),
    ATTACK(many_files),
    ATTACK(capabilities),
    ATTACK(unlinkat),
    ATTACK(renameat2),
    ATTACK(linkat),
    ATTACK(symlinkat),
    ATTACK(mkdirat),
    ATTACK(mknodat),
    ATTACK(fchmodat),
    ATTACK(fchownat),
    ATTACK(utimensat),
    ATTACK(setxattr),
    ATTACK(truncate),
    ATTACK(name_to_handle_at),
    ATTACK(open_by_handle_at),
    ATTACK(mq_open),
    ATTACK(shmget),
    ATTACK(semget),
    ATTACK(msgget),
    ATTACK(io_uring_setup),
    ATTACK(bpf),
    ATTACK(perf_event_open),
    ATTACK(userfaultfd),
    ATTACK(add_key),
    ATTACK(keyctl),
    ATTACK(unshare),
    ATTACK(setns),
    ATTACK(chroot),
    ATTACK(chdir),
    ATTACK(mount),
    ATTACK(setsid),
    ATTACK(setpgid),
    ATTACK(setuid),
    ATTACK(setgroups),
    ATTACK(personality),
    ATTACK(sethostname),
    ATTACK(inotify_init1),
    ATTACK(timer_create),
    ATTACK(mlock),
    ATTACK(sync),
    ATTACK(clock_adjtime),
    ATTACK(seccomp),
    ATTACK(landlock_create_ruleset),
    ATTACK(all_numbers),
};

static void need_sandbox(void)
{
    char why[160];
    if (!sandbox_missing(why, sizeof why)) return;
    print_message("skipped: %s\n", why);
    skip();
}

static void code_cannot_get_out(void **state)
{
    (void)state;
    need_sandbox();
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        const int found = run_confined(attacks[i].run);
        if (found != 0)
            fail_msg("%s: %s", attacks[i].name, found == 1 ? "it worked" : "the child was ended");
    }
    assert_int_equal(kill(victim, 0), 0);
    assert_int_equal(access(made, F_OK), -1);
}

static int use_what_kernels_need(void)
{
    struct rlimit limits;
    void *memory = malloc(64 << 20);
    if (!memory || !getrlimit(RLIMIT_CPU, &limits)) memset(memory, 1, 64 << 20);
    free(memory);
    const int file = open("/proc/meminfo", O_RDONLY);
    char text[64];
    return memory && file >= 0 && read(file, text, sizeof text) > 0 &&
           sysconf(_SC_NPROCESSORS_ONLN) > 0;
}

static void code_can_do_its_work(void **state)
{
    (void)state;
    need_sandbox();
    assert_int_equal(run_confined(use_what_kernels_need), 1);
}

static void output_is_bounded_and_printable(void **state)
{
    (void)state;
    char text[64];
    const int output = sandbox_output_open();
    assert_true(output >= 0);
    const pid_t child = fork();
    if (child == 0) {
        sandbox_enter(&(sandbox){.kind = SANDBOX_KERNEL,
                                 .parent = judge,
                                 .keep = {-1, -1},
                                 .output = output,
                                 .cpu_seconds = 5});
        static char block[65536];
        while (write(STDERR_FILENO, block, sizeof block) > 0)
            continue;
        _exit(0);
    }
    waitpid(child, NULL, 0);
    struct stat about;
    assert_int_equal(fstat(output, &about), 0);
    assert_in_range(about.st_size, 0, SANDBOX_OUTPUT_MOST);
    assert_int_equal(ftruncate(output, 0), 0);
    assert_int_equal(pwrite(output, "a\033]0;b", 6, 0), 6);
    assert_int_equal(sandbox_output_read(output, text, sizeof text), 6);
    close(output);
}

/* --- compilers ------------------------------------------------------------------------------- */

static const char kernel_text[] = "\n#include \"quipu_kernel.h\"\n"
                                  "void rms_norm_kernel(const op_call *call) { (void)call; }\n";

static void write_text(const char *name, const char *text, const char *more, int mode)
{
    char path[64];
    at(name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s%s", text, more);
    fclose(file);
    chmod(path, (mode_t)mode);
}

/* Compiles folder/mine.c; the compiler's message, or "". */
static const char *compile(void)
{
    static char message[CHECK_DETAIL_SIZE];
    char path[64];
    candidate found;
    qp_error error = {0};
    at("mine.c", path);
    assert_ok(candidate_open(op_find("rms_norm"), path, false, NULL, &found, &error));
    snprintf(message, sizeof message, "%s", found.verdict.detail);
    candidate_close(&found);
    return message;
}

/* Lines of a source before a kernel's. %s is the folder, where `secret` lies. */
static const char *const sources[] = {
    "#include \"%s/secret\"\n",
    "#include \"/etc/passwd\"\n",
    "#include \"/proc/self/environ\"\n",
    "#include \"/dev/zero\"\n",
    "#include \"link.h\"\n",
    "asm(\".incbin \\\"%s/secret\\\"\");\n",
    "asm(\".include \\\"%s/secret\\\"\");\n",
    "#if __has_include(\"/proc/1/mem\")\n#include \"/proc/1/mem\"\n#endif\n#include "
    "\"/proc/self/mem\"\n",
    "#pragma GCC dependency \"/etc/passwd\"\n#include \"/etc/hostname\"\n",
    "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(x))))\nchar *big = "
    "B(B(\"0123456789012345678901234567890123456789\"));\n",
};

static void sources_read_no_other_files(void **state)
{
    (void)state;
    need_sandbox();
    char path[64], text[1024];
    at("link.h", path);
    assert_int_equal(symlink(secret, path), 0);
    write_text("beside.h", "#define BESIDE 1\n", "", 0600);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        snprintf(text, sizeof text, sources[i], folder);
        write_text("mine.c", text, kernel_text, 0600);
        const char *said = compile();
        if (!said[0] || strstr(said, "sesame") || strstr(said, "root:"))
            fail_msg("source %zu: the compiler said: %s", i, said);
    }
    write_text("mine.c", "#include \"beside.h\"\n#include <stdio.h>\n", kernel_text, 0600);
    assert_string_equal(compile(), "");
}

/* Compilers that attack: scripts named cc. %s is the folder. What works leaves a file there, or
 * tells. */
static const char *const compilers[] = {
    "cat %s/secret >&2",
    "cat /etc/passwd | head -1 >&2",
    "echo x >%s/made",
    "rm %s/secret",
    "chmod 777 %s/secret && echo sesame",
    "mv %s/secret %s/made",
    "ln %s/secret %s/made",
    "mkdir %s/made",
    "touch %s/secret && echo sesame",
    "kill -9 $(cat %s/victim) && echo sesame",
    "kill -9 $PPID && echo sesame",
    "echo $QUIPU_TEST_KEY",
    "cat /proc/$PPID/environ /proc/1/environ",
    "exec 3<>/dev/tcp/127.0.0.1/22 && echo sesame",
    "setsid sleep 4711 && echo sesame",
    "sleep 4711 & sleep 4711 & echo done",
    "dd if=/dev/zero of=$TMPDIR/big bs=1M count=400 2>/dev/null && echo sesame",
    "dd if=/dev/zero bs=3G count=1 2>/dev/null | wc -c | grep 3221 && echo sesame",
    "yes | head -c 100000000",
    "ls / && echo sesame",
};

static bool process_is_running(const char *argument)
{
    char path[300], text[256];
    bool found = false;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all && (entry = readdir(all));) {
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *file = fopen(path, "r");
        const size_t n = file ? fread(text, 1, sizeof text, file) : 0;
        if (file) fclose(file);
        for (size_t i = 0; i + strlen(argument) < n; i++)
            found = found || memcmp(text + i, argument, strlen(argument) + 1) == 0;
    }
    if (all) closedir(all);
    return found;
}

static void compilers_cannot_get_out(void **state)
{
    (void)state;
    need_sandbox();
    char text[512], path[4200];
    write_text("mine.c", "", kernel_text, 0600);
    snprintf(text, sizeof text, "%d", victim);
    write_text("victim", text, "", 0600);
    at("bin", path);
    assert_int_equal(mkdir(path, 0700), 0);
    const char *before = getenv("PATH");
    snprintf(path, sizeof path, "%s/bin:%.4000s", folder, before);
    char *kept = strdup(before);
    setenv("PATH", path, 1);
    for (size_t i = 0; i < sizeof compilers / sizeof *compilers; i++) {
        snprintf(text, sizeof text, compilers[i], folder, folder);
        write_text("bin/cc", "#!/bin/sh\n", text, 0700);
        const char *said = compile();
        if (strstr(said, "sesame") || strstr(said, "root:") || access(made, F_OK) == 0 ||
            access(secret, F_OK) != 0 || kill(victim, 0) != 0)
            fail_msg("compiler %zu got out: %s", i, said);
    }
    setenv("PATH", kept, 1);
    free(kept);
    assert_false(process_is_running("4711"));
    struct stat about;
    assert_int_equal(stat(secret, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
}

/* --- what cannot be confined ----------------------------------------------------------------- */

static void what_cannot_be_confined_is_refused(void **state)
{
    (void)state;
    char path[64];
    candidate found;
    qp_error error = {0};
    write_text("mine.cu", kernel_text, "", 0600);
    at("mine.cu", path);
    assert_int_equal(candidate_open(op_find("rms_norm"), path, false, NULL, &found, &error),
                     QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "--unconfined"));
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    at("secret", secret);
    at("made", made);
    setenv("QUIPU_TEST_KEY", "sesame", 1);
    judge = getpid();
    write_text("secret", "sesame\n", "", 0600);
    inherited = open(secret, O_RDWR | O_CLOEXEC | O_APPEND);
    victim = fork();
    if (victim == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    return victim > 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_listed_calls_pass),
        cmocka_unit_test(numbers_are_those_of_the_machines),
        cmocka_unit_test(arguments_decide),
        cmocka_unit_test(code_cannot_get_out),
        cmocka_unit_test(code_can_do_its_work),
        cmocka_unit_test(output_is_bounded_and_printable),
        cmocka_unit_test(sources_read_no_other_files),
        cmocka_unit_test(compilers_cannot_get_out),
        cmocka_unit_test(what_cannot_be_confined_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
