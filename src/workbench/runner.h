/* Runs a candidate in a process of its own, which loads the code and calls its kernel on tensors in
 * shared memory.
 *
 * The judge is the process that calls these functions. It owns the expected values, the clock and
 * the verdict. It reads only two things from the candidate's process: messages of a fixed size,
 * each of which must be the expected number, and the bytes in the shared memory, which it copies
 * before it examines them. So whatever the code writes, to any descriptor or address, the worst
 * result is a wrong answer.
 */
#pragma once

#include "workbench/candidate.h"

typedef struct runner runner;

/* Starts the process for a case, with `timeout_ms` for all questions. The fixtures' shared memory
 * must exist. *declined: the kernel's accepts() refuses the case. False: status and detail give the
 * reason, and the runner is closed. */
bool runner_open(const candidate *candidate, const op_case *about, int timeout_ms, runner **out,
                 bool *declined, check_status *status, char *detail, size_t size);

/* The callback of check_runner; the context is the runner. */
bool runner_run(void *context, const fixture *fixture, int n_threads, check_status *status,
                char *detail, size_t size);
bool runner_scratch_bytes(void *context, const fixture *fixture, uint64_t *bytes,
                          check_status *status, char *detail, size_t size);

/* Number of threads that the code has left running, without those of its thread pools; 0 where that
 * is not known. */
int runner_threads_left(runner *runner);

/* Ends the process and all that it started. NULL is allowed. */
void runner_close(runner *runner);
