/* The serial machine: runs a schedule's instructions one at a time, in any order that its waits
 * allow.
 *
 * It is the oracle for the other machines: in whatever order they run the instructions, their
 * outputs must equal those of this machine, and those of the program run node by node, bit for bit.
 */
#pragma once

#include "vm/bound.h"

typedef struct serial_options {
    const bound_kernel *nodes; /* [schedule->n_nodes], where a NULL kernel stands for the reference;
                                  NULL: references only */
    void *scratch;             /* as much as the most demanding kernel needs */
    uint64_t seed; /* seed of the order, in which shared instructions may come before their turn; 0:
                      each worker runs as far as it can, in turn */
    int first_step, last_step; /* steps that run; the others only signal; 0, 0: all */
} serial_options;

typedef struct serial_machine serial_machine;

qp_status serial_create(const schedule *schedule, serial_machine **out, qp_error *error);
void serial_destroy(serial_machine *machine);

/* Runs one forward pass. Returns QP_INVALID, and names the worker, the instruction and the counter,
 * when no instruction can run: then the schedule is unsound. */
qp_status serial_run(serial_machine *machine, const program_memory *memory, const int64_t *sizes,
                     const serial_options *options, qp_error *error);
