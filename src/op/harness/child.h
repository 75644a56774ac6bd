/* Running a function in a process of its own, so that a crash or a hang is a result. */
#ifndef QUIPU_OP_HARNESS_CHILD_H
#define QUIPU_OP_HARNESS_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Computes `result`, which holds what it held when the child was made. */
typedef void child_task(void *context, void *result);

typedef enum child_end {
    CHILD_DONE,
    CHILD_CRASHED, /* killed by a signal, or ended before its result */
    CHILD_TIMEOUT,
    CHILD_FAILED, /* could not be made */
} child_end;

/* Runs the task in a child that is killed after timeout_ms, or when *cancel is set (it may be
 * NULL), with all that it started, and copies its result back. Unless it is done, `what` (of `size`
 * bytes) says what became of it and `result` is not to be used. What the child writes to standard
 * output goes to standard error. */
child_end child_run(child_task *task, void *context, void *result, size_t result_size,
                    int timeout_ms, const volatile int *cancel, char *what, size_t size);

/* Ends a child and the process group that it leads, and waits for it. */
void child_end_group(int child);

/* Waits for a child that is about to end, until `deadline` (of clock_ns()): whether it did, and its
 * status as waitpid() gives it. Its process group is ended too. */
bool child_wait(int child, uint64_t deadline, int *status);

/* "killed by signal 11 (SIGSEGV: ...)", "ended with status 1 before its verdict" */
void child_describe_end(int status, char *what, size_t size);

#endif
