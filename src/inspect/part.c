/* Engines that run a part of the pass: see part.h. */
#include "inspect/part.h"

#include "engine/engine.h"
#include "engine/schedule.h"
#include "schedule/skip.h"

static engine_part part_of(const pass_part *part)
{
    return (engine_part){.skip = {.kinds = part->skip,
                                  .start_after = part->start_after,
                                  .stop_after = part->stop_after},
                         .layers = part->layers,
                         .costs = part->costs,
                         .at_once = part->at_once,
                         .admit = part->admit,
                         .admit_context = part->admit_context};
}

qp_status part_open(const qp_engine_options *options, const pass_part *part, qp_engine **out,
                    qp_error *error)
{
    const engine_part of = part_of(part);
    return engine_open_part(options, &of, out, error);
}

qp_status part_reschedule(qp_engine *engine, const qp_schedule_options *schedule,
                          const pass_part *part, qp_error *error)
{
    const engine_part of = part_of(part);
    return engine_reschedule_part(engine, schedule, &of, error);
}

qp_status part_print_kinds(const qp_engine *engine, strbuf *out, qp_error *error)
{
    const machine *m = engine_memory(engine);
    const schedule *s = m->type->reschedule ? machine_schedule(m) : NULL;
    if (!s)
        return error_set(
            error, QP_INVALID,
            "the machine %s runs no schedule of which parts could be left out; threads "
            "and serial do",
            m->type->name);
    schedule_print_kinds(s, out);
    return QP_OK;
}
