/* Filters of system calls: see sandbox_filter.h. */
#define _GNU_SOURCE /* CLONE_... */
#include "workbench/sandbox_filter.h"

#ifdef __linux__
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* Of newer headers. */
/* Calls that all machines give the same number; a C library does without them. */
enum { CLONE3 = 435, OPENAT2 = 437 };

enum { SET_NAME_OF_MEMORY = 0x53564d41 };
static const unsigned tcgets = 0x5401, tcgets2 = 0x802c542a;
enum { WRITES = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_ASYNC };
enum {
    NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |
                 CLONE_NEWNET | CLONE_NEWCGROUP
};

typedef struct filter {
    struct sock_filter *out;
    int length;
} filter;

static void put(filter *f, unsigned code, unsigned k, int when_true, int when_false)
{
    f->out[f->length++] = (struct sock_filter){(unsigned short)code, (unsigned char)when_true,
                                               (unsigned char)when_false, k};
}

static void answer(filter *f, unsigned what)
{
    put(f, BPF_RET | BPF_K, what, 0, 0);
}

static void allow(filter *f)
{
    answer(f, SECCOMP_RET_ALLOW);
}

static void refuse(filter *f)
{
    answer(f, SECCOMP_RET_ERRNO | EPERM);
}

static void load(filter *f, size_t offset)
{
    put(f, BPF_LD | BPF_W | BPF_ABS, (unsigned)offset, 0, 0);
}

/* The lower half of an argument; both machines are little-endian. */
static void load_argument(filter *f, int n)
{
    load(f, offsetof(struct seccomp_data, args) + (size_t)n * 8);
}

/* The next statement is skipped unless what was loaded is k. */
static void if_equal(filter *f, unsigned k)
{
    put(f, BPF_JMP | BPF_JEQ | BPF_K, k, 0, 1);
}

/* The next statement is skipped unless one of the bits is set. */
static void if_any_bit(filter *f, unsigned bits)
{
    put(f, BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
}

static void allow_values(filter *f, int argument, const unsigned *values, int n)
{
    load_argument(f, argument);
    for (int i = 0; i < n; i++) {
        if_equal(f, values[i]);
        allow(f);
    }
    refuse(f);
}

#define ALLOW_VALUES(f, argument, ...)                                                             \
    allow_values(f, argument, (const unsigned[]){__VA_ARGS__},                                     \
                 sizeof((const unsigned[]){__VA_ARGS__}) / sizeof(unsigned))

static void refuse_bits(filter *f, int argument, unsigned bits)
{
    load_argument(f, argument);
    if_any_bit(f, bits);
    refuse(f);
    allow(f);
}

/* Memory shared without a file and stacks that grow are not in RLIMIT_DATA. */
static void judge_mmap(filter *f)
{
    load_argument(f, 3);
    if_any_bit(f, MAP_GROWSDOWN);
    refuse(f);
    put(f, BPF_ALU | BPF_AND | BPF_K, MAP_SHARED | MAP_ANONYMOUS, 0, 0);
    if_equal(f, MAP_SHARED | MAP_ANONYMOUS);
    refuse(f);
    allow(f);
}

static void judge_thread(filter *f)
{
    load_argument(f, 0);
    if_any_bit(f, NAMESPACES);
    refuse(f);
    if_any_bit(f, CLONE_THREAD);
    allow(f);
    refuse(f);
}

/* The new limits are a pointer: NULL in both halves. */
static void judge_limits(filter *f)
{
    static const size_t words[] = {0, 16, 20};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        load(f, offsetof(struct seccomp_data, args) + words[i]);
        put(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
        refuse(f);
    }
    allow(f);
}

static void judge_arguments(filter *f, sandbox_rule rule, int process)
{
    switch (rule) {
    case SANDBOX_ANY:
        allow(f);
        return;
    case SANDBOX_SELF:
        ALLOW_VALUES(f, 0, 0);
        return;
    case SANDBOX_OWN_PROCESS:
        ALLOW_VALUES(f, 0, (unsigned)process);
        return;
    case SANDBOX_PRIVATE_MEMORY:
        judge_mmap(f);
        return;
    case SANDBOX_THREAD:
        judge_thread(f);
        return;
    case SANDBOX_PROCESS:
        refuse_bits(f, 0, NAMESPACES | CLONE_PARENT);
        return;
    case SANDBOX_NAMES:
        ALLOW_VALUES(f, 0, PR_SET_NAME, PR_GET_NAME, SET_NAME_OF_MEMORY);
        return;
    case SANDBOX_LIMITS_READ:
        judge_limits(f);
        return;
    case SANDBOX_READ_FIRST:
        refuse_bits(f, 1, WRITES);
        return;
    case SANDBOX_READ_SECOND:
        refuse_bits(f, 2, WRITES);
        return;
    case SANDBOX_DUPLICATES:
        ALLOW_VALUES(f, 1, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL);
        return;
    case SANDBOX_TERMINAL:
        ALLOW_VALUES(f, 1, tcgets, tcgets2);
        return;
    }
}

int sandbox_filter_make(const sandbox_machine *machine, int who, int process,
                        struct sock_filter *out)
{
    filter f = {out, 0};
    load(&f, offsetof(struct seccomp_data, arch));
    put(&f, BPF_JMP | BPF_JEQ | BPF_K, machine->audit_arch, 1, 0);
    refuse(&f);
    load(&f, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < machine->count; i++) {
        const sandbox_call *call = &machine->calls[i];
        if (!(call->who & who)) continue;
        const int jump = f.length;
        if_equal(&f, (unsigned)call->number);
        judge_arguments(&f, call->rule, process);
        f.out[jump].jf = (unsigned char)(f.length - jump - 1);
    }
    if_equal(&f, CLONE3);
    answer(&f, SECCOMP_RET_ERRNO | ENOSYS);
    if_equal(&f, OPENAT2);
    answer(&f, SECCOMP_RET_ERRNO | ENOSYS);
    refuse(&f);
    return f.length;
}
#endif

const sandbox_machine *sandbox_native(void)
{
#ifdef __aarch64__
    return &sandbox_aarch64;
#else
    return &sandbox_x86_64; /* without calls on other machines */
#endif
}
