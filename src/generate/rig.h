/* A model made ready to be timed: passes over any number of tokens at any depth, as any schedule.
 *
 * What measures (measure.h) and what compares (compare.h) run passes through a rig_machine and know
 * no more of it, so that a machine elsewhere, such as a GPU, is measured like the CPU's.
 */
#ifndef QUIPU_GENERATE_RIG_H
#define QUIPU_GENERATE_RIG_H

#include "generate/engine.h"

typedef struct rig {
    qp_engine *engine;
    page_list pages;         /* of the one sequence */
    thread_pool *alone;      /* a pool of one */
    executor alone_executor; /* the engine's, with that pool; owns nothing */
} rig;

/* The engine is opened with these options. rig_close() it, also after a failure. */
qp_status rig_open(const qp_engine_options *options, rig *out, qp_error *error);
void rig_close(rig *rig);

/* Makes the next pass's batch: the last `tokens` of `context` positions of one sequence, whose
 * cache holds zeros. Both must fit the engine's. */
qp_status rig_fill(rig *rig, int64_t tokens, int64_t context, qp_error *error);

/* A machine that runs one schedule over the rig's batch. */
typedef struct rig_machine {
    const schedule *schedule;
    void *self;
    /* One pass; timings is [workers][longest] or NULL. */
    qp_status (*run)(void *self, const batch *batch, instruction_timing *timings, qp_error *error);
    void (*close)(void *self);
    instruction_timing *memory;
    instruction_timing *timings, *best; /* [workers][longest]: of the last pass, of the quickest */
    double last_ns, best_ns;            /* how long those took; best_ns 0: there was none */
} rig_machine;

/* Makes the schedule that the options say, with the CPU machine for it: as many workers as the
 * engine has threads, or one. rig_machine_close() it, also after a failure. */
qp_status rig_machine_open(rig *rig, const schedule_options *options, bool alone, rig_machine *out,
                           qp_error *error);
void rig_machine_close(rig_machine *machine);

/* One pass over the batch, timed. */
qp_status rig_run(rig *rig, rig_machine *machine, qp_error *error);

#endif
