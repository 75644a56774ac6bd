/* Running a function in a process of its own, so that a crash or a hang is a result. */
#ifndef QUIPU_OP_HARNESS_CHILD_H
#define QUIPU_OP_HARNESS_CHILD_H

#include <stdbool.h>
#include <stddef.h>

/* Computes `result`, which holds what it held when the child was made. */
typedef void child_task(void *context, void *result);

typedef enum child_end {
    CHILD_DONE,
    CHILD_CRASHED, /* killed by a signal, or ended before its result */
    CHILD_TIMEOUT,
    CHILD_FAILED, /* could not be made */
} child_end;

/* Runs the task in a child that is killed after timeout_ms with all that it started, and copies
 * its result back. Unless it is done, `what` (of `size` bytes) says what became of it and `result`
 * is not to be used. What the child writes to standard output goes to standard error. */
child_end child_run(child_task *task, void *context, void *result, size_t result_size,
                    int timeout_ms, char *what, size_t size);

#endif
