/* The schedule that a caller chooses for an engine: qp_schedule_options read and checked. */
#pragma once

#include "quipu.h"
#include "schedule/skip.h"
#include "vm/machine.h"

typedef struct engine_schedule {
    schedule_options options; /* what the caller decides; the rest is zero */
    schedule_skip skip;       /* of a part of the pass; its texts outlive this */
    char *file;               /* a copy of the path; NULL: the options decide */
} engine_schedule;

/* A part of the pass, for measurements, and what the caller knows of its use. Zero: all of it. */
typedef struct engine_part {
    schedule_skip skip;
    int64_t layers;
    const char *costs; /* a file of measured costs by which schedules are made; NULL: guesses */
    bool at_once;      /* the first pass follows at once: see machine_setup.pack_later */
    /* NULL, or asked before any memory is taken, with the bytes that the engine will take of the
     * host, or of the GPU that it runs on. Another status than QP_OK ends the opening. */
    qp_status (*admit)(void *context, uint64_t bytes, qp_error *error);
    void *admit_context;
} engine_part;

/* qp_engine_open() and qp_engine_reschedule() of a part. */
qp_status engine_open_part(const qp_engine_options *options, const engine_part *part,
                           qp_engine **out, qp_error *error);
qp_status engine_reschedule_part(qp_engine *engine, const qp_schedule_options *schedule,
                                 const engine_part *part, qp_error *error);

/* Reads the caller's options; NULL are the defaults. engine_schedule_free() the result, also after
 * a failure. */
qp_status engine_schedule_read(const qp_schedule_options *given, engine_schedule *out,
                               qp_error *error);
void engine_schedule_free(engine_schedule *schedule);

/* Whether passes are not whole, so that logits are wrong. */
bool engine_schedule_leaves_out(const engine_schedule *schedule);

/* QP_UNSUPPORTED where a part of the pass is chosen for several ranks, which wait for each other's
 * rows. */
qp_status engine_schedule_check_ranks(const engine_schedule *schedule, int n_ranks,
                                      qp_error *error);

/* QP_INVALID where the choice has no effect on a machine of this type, or the forward pass does not
 * have it: `fuse` is for few tokens. */
qp_status engine_schedule_check(const engine_schedule *schedule, const machine_type *type,
                                bool fuse, qp_error *error);

/* The number of workers of the schedule in the file; 0: there is no file. */
qp_status engine_schedule_workers(const engine_schedule *schedule, int *workers, qp_error *error);

/* The options with what the engine's program and measured costs decide. */
schedule_options engine_schedule_options(const qp_engine *e, const engine_schedule *schedule);

/* Loads the costs that were measured with as many workers as the engine's threads, if there are. */
void engine_load_costs(qp_engine *e, const char *path);
