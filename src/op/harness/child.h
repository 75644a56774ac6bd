/* Runs a function in a process of its own, so that a crash or a hang is a result. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Computes `result`, which has the contents that it had when the child was created. */
typedef void child_task(void *context, void *result);

typedef enum child_end {
    CHILD_DONE,
    CHILD_CRASHED, /* killed by a signal, or ended before its result */
    CHILD_TIMEOUT,
    CHILD_FAILED, /* the child could not be created */
} child_end;

/* Runs the task in a child and copies its result back. The child, with everything that it started,
 * is killed after timeout_ms or when *cancel is set (it may be NULL). Unless the task is done,
 * `what` (of `size` bytes) describes what happened and `result` must not be used. The child's
 * standard output goes to standard error. */
child_end child_run(child_task *task, void *context, void *result, size_t result_size,
                    int timeout_ms, const volatile int *cancel, char *what, size_t size);

/* In the child: the descriptor that the result is written to, which a task that closes others
 * keeps. */
int child_result_descriptor(void);

/* Kills a child and the process group that it leads, and waits for it. */
void child_end_group(int child);

/* Waits until `deadline` (of clock_ns()) for a child that is about to end. Returns whether it did,
 * and its status as from waitpid(). Its process group is killed too. */
bool child_wait(int child, uint64_t deadline, int *status);

/* "killed by signal 11 (SIGSEGV: ...)", "ended with status 1 before its verdict" */
void child_describe_end(int status, char *what, size_t size);
