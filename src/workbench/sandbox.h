/* What is taken from a process before it runs a stranger's code. */
#ifndef QUIPU_WORKBENCH_SANDBOX_H
#define QUIPU_WORKBENCH_SANDBOX_H

#include <stdbool.h>

/* For a child just forked, by a process of the id `parent`: it leads a process group of its own,
 * dies with its parent, reads nothing from standard input, keeps no descriptors but the standard
 * ones and `keep` (-1 for none), writes no core, uses at most cpu_seconds of processor time on each
 * of a few threads, and gains no privileges by what it executes. */
void sandbox_enter(int parent, const int keep[2], int cpu_seconds);

/* Besides, on Linux on x86-64: it starts no processes, signals and traces none, opens no file for
 * writing, removes and renames none, and opens no socket. Threads may be started. For code that is
 * compiled C; the GPU's driver needs more. Elsewhere this does nothing. */
void sandbox_forbid(void);

#endif
