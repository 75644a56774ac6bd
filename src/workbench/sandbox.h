/* Restrictions for a process that runs untrusted code. */
#ifndef QUIPU_WORKBENCH_SANDBOX_H
#define QUIPU_WORKBENCH_SANDBOX_H

#include <stdbool.h>

/* For a child that was just forked by the process with the id `parent`. The child leads a process
 * group of its own, dies with its parent, has no standard input, keeps only the standard
 * descriptors and `keep` (-1 for none), writes no core file, uses at most cpu_seconds of processor
 * time on each of a few threads, and gains no privileges by executing programs. */
void sandbox_enter(int parent, const int keep[2], int cpu_seconds);

/* Additional restrictions on Linux on x86-64: it starts no processes, signals and traces none,
 * opens no file for writing, removes and renames none, and opens no socket. It may start threads.
 * For compiled C code; the GPU's driver needs more. On other systems this does nothing. */
void sandbox_forbid(void);

#endif
