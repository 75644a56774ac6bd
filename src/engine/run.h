/* The way to the engine's machines: which of them runs a request, and what a trace records of it.
 */
#ifndef QUIPU_ENGINE_RUN_H
#define QUIPU_ENGINE_RUN_H

#include "vm/machine.h"

struct qp_engine;

/* The index-th open machine, the first to be asked first. */
const machine *engine_machine(const struct qp_engine *engine, int index);

/* The machine that holds the memory which the others share. */
const machine *engine_memory(const struct qp_engine *engine);

/* The pace of the first machine that runs passes of one new token of each of `n_sequences`. */
machine_pace engine_pace(const struct qp_engine *engine, int64_t n_sequences,
                         machine_choice choice);

/* A run of one of the engine's machines. */
typedef struct engine_run {
    const machine *machine;
    machine_request request;
} engine_run;

/* Finds the machine for run->request, the first that accepts it. QP_UNSUPPORTED says why none does.
 */
qp_status engine_find_run(const struct qp_engine *engine, engine_run *run, qp_error *error);

/* Starts the run on its machine, and records it where there is a trace. */
qp_status engine_begin_run(struct qp_engine *engine, engine_run *run, qp_error *error);

/* Ends it; of several runs the one that was begun first. *passes: how many there were. */
qp_status engine_end_run(struct qp_engine *engine, const engine_run *run, int *passes,
                         qp_error *error);

#endif
