/* A candidate's process: it loads the code and runs its kernel on calls in shared memory.
 *
 * The judge is the process that calls these functions. It owns the expected values, the clock and
 * the verdict. From the candidate's process it gets two things only: messages of a fixed size, each
 * a number that must be the one expected, and the bytes in the shared memory, which it copies
 * before it looks at them. So what the code writes, to whatever descriptor or address, is at worst
 * a wrong answer.
 */
#ifndef QUIPU_WORKBENCH_RUNNER_H
#define QUIPU_WORKBENCH_RUNNER_H

#include "workbench/candidate.h"

typedef struct runner runner;

/* Starts the process for a case; it has `timeout_ms` for all that it is asked. The fixtures' shared
 * memory is there already. *declined: its accepts() does not take the case. False: status and
 * detail say why, and the runner is closed. */
bool runner_open(const candidate *candidate, const op_case *about, int timeout_ms, runner **out,
                 bool *declined, check_status *status, char *detail, size_t size);

/* What a check_runner needs; the context is the runner. */
bool runner_run(void *context, const fixture *fixture, int n_threads, check_status *status,
                char *detail, size_t size);
bool runner_scratch_bytes(void *context, const fixture *fixture, uint64_t *bytes,
                          check_status *status, char *detail, size_t size);

/* Threads that the code has left running, after those of its pools have ended; 0 where that is not
 * known. */
int runner_threads_left(runner *runner);

/* Ends the process and all that it started. NULL is allowed. */
void runner_close(runner *runner);

#endif
