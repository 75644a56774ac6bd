/* A schedule with everything that is needed to run it: the addresses of its memory, and a kernel
 * for every node. The machines `serial` and `threads` run a bound schedule. */
#pragma once

#include "base/crew.h"
#include "schedule/schedule.h"

/* How a node's instructions run. Chosen once, because it depends only on types and weights. */
typedef struct bound_kernel {
    op_kernel *kernel;
    const void *packed;       /* the variant's own form of the weights, or NULL */
    size_t packed_unit_bytes; /* bytes of `packed` for each unit */
} bound_kernel;

typedef struct bound_schedule {
    const schedule *schedule;
    const program_memory *memory;
    const bound_kernel *kernels; /* [schedule->n_nodes] */
    void *scratch;               /* of all workers, one after the other */
    size_t scratch_bytes;        /* bytes for one worker, enough for any kernel */
    crew *crew;                  /* pieces of exchanges, which workers take that wait; NULL: none */
} bound_schedule;
