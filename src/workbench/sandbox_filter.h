/* Filters of system calls for sandboxed processes, as programs of seccomp.
 *
 * A filter allows what sandbox_calls.def lists for its kind of process, and refuses all else: with
 * EPERM, or with ENOSYS where a C library then tries an older call. A filter for another machine
 * can be made too, to be tested. */
#pragma once

#include <stddef.h>

enum { SANDBOX_CODE = 1, SANDBOX_TOOL = 2, SANDBOX_ALL = 3 };

/* What the arguments of an allowed call must be. */
typedef enum sandbox_rule {
    SANDBOX_ANY,
    SANDBOX_SELF,           /* the first is 0: the calling process or thread */
    SANDBOX_OWN_PROCESS,    /* the first is the process's number */
    SANDBOX_PRIVATE_MEMORY, /* mmap: nothing that the limit of memory does not count */
    SANDBOX_THREAD,         /* clone: a thread, in no new namespace */
    SANDBOX_PROCESS,        /* clone: in no new namespace, and a child of the caller */
    SANDBOX_NAMES,          /* prctl: names of threads and of memory */
    SANDBOX_LIMITS_READ,    /* prlimit: the caller's own, and only to read them */
    SANDBOX_READ_FIRST,     /* open: for reading; the flags are the argument after the first */
    SANDBOX_READ_SECOND,    /* openat */
    SANDBOX_DUPLICATES,     /* fcntl: duplicates, and flags of descriptors */
    SANDBOX_TERMINAL,       /* ioctl: the question whether it is a terminal */
} sandbox_rule;

typedef struct sandbox_call {
    const char *name;
    int number;
    int who; /* SANDBOX_CODE, SANDBOX_TOOL or both */
    sandbox_rule rule;
} sandbox_call;

/* A machine's calls. `count` 0: there are no filters for it here. */
typedef struct sandbox_machine {
    unsigned audit_arch; /* AUDIT_ARCH_... */
    const sandbox_call *calls;
    int count;
} sandbox_machine;

extern const sandbox_machine sandbox_x86_64, sandbox_aarch64;

/* The machine that this program was compiled for. */
const sandbox_machine *sandbox_native(void);

struct sock_filter;
enum { SANDBOX_FILTER_MOST = 512 };

/* Writes the filter, of at most SANDBOX_FILTER_MOST statements, for a process of that kind with
 * that number; returns its length. */
int sandbox_filter_make(const sandbox_machine *machine, int who, int process,
                        struct sock_filter *out);
