/* The serial machine: a schedule's instructions one at a time, in any order that its waits allow.
 *
 * The oracle for the other machines: whatever order they come to run in, the outputs must be those
 * of this one, to the bit, and those of the plan run operator by operator.
 */
#ifndef QUIPU_VM_SERIAL_H
#define QUIPU_VM_SERIAL_H

#include "vm/bound.h"

/* Runs a bound instruction in the place of `kernel`. */
typedef void serial_hook(void *context, const instruction *in, const op_call *call,
                         op_kernel *kernel);

typedef struct serial_options {
    const bound_kernel *nodes; /* [schedule->n_nodes], a NULL kernel being the reference; NULL:
                                * references throughout */
    void *scratch;             /* as much as the neediest kernel wants */
    uint64_t seed;             /* of the order; 0: each worker goes as far as it can, in turn */
    int first_step, last_step; /* instructions of other steps signal without working; 0, 0: all */
    serial_hook *hook;         /* NULL: kernels are run as they are */
    void *context;
} serial_options;

typedef struct serial_machine serial_machine;

qp_status serial_create(const schedule *schedule, serial_machine **out, qp_error *error);
void serial_destroy(serial_machine *machine);

/* Runs one forward pass. QP_INVALID with the worker, the instruction and the counter when no
 * instruction can go on: the schedule is not sound. */
qp_status serial_run(serial_machine *machine, const program_memory *memory, const int64_t *sizes,
                     const serial_options *options, qp_error *error);

/* The bytes of scratch that references need at the schedule's capacity. */
size_t serial_scratch_bytes(const schedule *schedule);

#endif
