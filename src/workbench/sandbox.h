/* Restrictions for a process that runs untrusted code.
 *
 * Confined processes of Linux on x86-64 and aarch64 make only the system calls of
 * sandbox_calls.def, open only files that Landlock allows, are in namespaces of their own where the
 * kernel gives them, and have limits of memory, files, processes and time. They have a session
 * without a terminal, no capability, and none of the environment.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum sandbox_kind {
    SANDBOX_UNCONFINED, /* a session, limits and descriptors of its own; the user's rights */
    SANDBOX_KERNEL,     /* compiled code: threads, memory, files to read; no processes */
    SANDBOX_COMPILER,   /* a program that reads `file` and headers, and writes in `folder` */
} sandbox_kind;

typedef struct sandbox {
    sandbox_kind kind;
    int parent;      /* process that made this one, and with which it ends */
    int keep[2];     /* descriptors that stay open beside the standard ones; -1: none */
    int output;      /* standard output and error; -1: none, of an unconfined one the parent's */
    int cpu_seconds; /* processor time, on each of a few threads */
    /* A kernel: its shared object; a compiler: the source, and headers beside it. NULL: none. */
    const char *file;
    const char *folder; /* NULL: none */
} sandbox;

/* For a child that was just forked. Where a confinement fails that sandbox_missing() did not
 * report, says so on standard error and ends the process. */
void sandbox_enter(const sandbox *box);

/* Whether this kernel cannot confine such processes; `why` then has a sentence. */
bool sandbox_missing(char *why, size_t size);

/* What this kernel has of it. */
typedef struct sandbox_features {
    bool filter;     /* of system calls: seccomp, on a machine with a list */
    int landlock;    /* its version; 0: absent */
    bool namespaces; /* of users, processes, networks and messages */
} sandbox_features;

sandbox_features sandbox_examine(void);

/* What a child prints: a file in memory, at most SANDBOX_OUTPUT_MOST bytes. -1 where none can be
 * made. */
enum { SANDBOX_OUTPUT_MOST = 1 << 20 };
int sandbox_output_open(void);

/* Reads at most `size` - 1 bytes of it, ends them by NUL, and returns how many there are. */
size_t sandbox_output_read(int output, char *text, size_t size);

/* Appends it to `out` (NULL: it is lost) with control characters made visible, and closes it. -1 is
 * allowed. */
void sandbox_output_take(int output, strbuf *out);

/* This process cannot be traced, nor its memory be read, by others of the same user. */
void sandbox_hide(void);
