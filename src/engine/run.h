/* Runs requests on the engine's machines, and records them in a trace.
 */
#pragma once

#include "vm/machine.h"

struct qp_engine;

/* The index-th open machine, in the order in which they are asked. */
const machine *engine_machine(const struct qp_engine *engine, int index);

/* The machine that owns the memory; the others use it too. */
const machine *engine_memory(const struct qp_engine *engine);

/* The pace of the first machine that can run passes with one new token of each of `n_sequences`. */
machine_pace engine_pace(const struct qp_engine *engine, int64_t n_sequences,
                         machine_choice choice);

/* A run of one of the engine's machines. */
typedef struct engine_run {
    const machine *machine;
    machine_request request;
} engine_run;

/* Finds the first machine that accepts run->request. QP_UNSUPPORTED gives the reasons if none does.
 */
qp_status engine_find_run(const struct qp_engine *engine, engine_run *run, qp_error *error);

/* Starts the run on its machine, and records it if there is a trace. */
qp_status engine_begin_run(struct qp_engine *engine, engine_run *run, qp_error *error);

/* Waits for the run; of several runs it must be the one that was started first. *passes: how many
 * passes it had. */
qp_status engine_end_run(struct qp_engine *engine, const engine_run *run, int *passes,
                         qp_error *error);
