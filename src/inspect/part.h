/* Engines that run a part of the pass, to tell what it costs: `bench` and `trace` with --skip,
 * --start-after, --stop-after and --layers. */
#pragma once

#include "base/strbuf.h"
#include "quipu.h"

/* Zero-initialise; a zero (or NULL) field leaves out nothing. With any of the first three, logits
 * are wrong, and the machine must be `threads` or `serial`. */
typedef struct pass_part {
    const char *skip; /* operators and steps, with commas, whose instructions become noops; "waits":
                       * all waits are over at once */
    const char *start_after, *stop_after; /* steps such as "5.attn_qkv": only those between run */
    int64_t layers;                       /* only the first ones, and the steps after the last */
    const char *costs; /* not a part: the file of costs measured on this machine by which schedules
                        * are made, as `quipu schedule` makes them; NULL: guesses */
    bool at_once;      /* nor this: the first pass follows at once, so that a CPU had better pack
                        * the weights during the first passes than before them */
    qp_status (*admit)(
        void *context, uint64_t bytes,
        qp_error *error); /* nor this: who shares the
                           * memory out, and is asked before any is taken; NULL: nobody */
    void *admit_context;
} pass_part;

/* qp_engine_open() of that part. */
qp_status part_open(const qp_engine_options *options, const pass_part *part, qp_engine **out,
                    qp_error *error);

/* qp_engine_reschedule() of that part; `layers` stays as it was opened. */
qp_status part_reschedule(qp_engine *engine, const qp_schedule_options *schedule,
                          const pass_part *part, qp_error *error);

/* Appends the operators of the schedule that decodes, with commas, in the program's order.
 * QP_INVALID if the engine runs no schedule. */
qp_status part_print_kinds(const qp_engine *engine, strbuf *out, qp_error *error);
