/* The engine's runs: see run.h. */
#include "engine/run.h"

#include "engine/engine.h"

const machine *engine_machine(const qp_engine *e, int index)
{
    return &e->slots[ENGINE_MACHINES - e->n_machines + index];
}

const machine *engine_memory(const qp_engine *e)
{
    return &e->slots[ENGINE_MACHINES - 1];
}

machine_pace engine_pace(const qp_engine *e, int64_t n_sequences, machine_choice choice)
{
    machine_pace pace = {0};
    if (e->observer.receive) return (machine_pace){1, 1}; /* it stops between steps */
    for (int i = 0; i < e->n_machines && pace.passes == 0; i++)
        pace = machine_pace_of(engine_machine(e, i), n_sequences, choice);
    return pace;
}

qp_status engine_find_run(const qp_engine *e, engine_run *run, qp_error *error)
{
    const char *why_not = NULL;
    for (int i = 0; i < e->n_machines; i++) {
        run->machine = engine_machine(e, i);
        why_not = machine_accepts(run->machine, &run->request);
        if (!why_not) return QP_OK;
    }
    return error_set(error, QP_UNSUPPORTED, "%s", why_not);
}

qp_status engine_begin_run(qp_engine *e, engine_run *run, qp_error *error)
{
    if (e->observer.receive) return observer_begin_run(e, run, error);
    trace_begin_run(e->trace, run->machine, &run->request);
    return machine_run(run->machine, &run->request, error);
}

qp_status engine_end_run(qp_engine *e, const engine_run *run, int *passes, qp_error *error)
{
    TRY(machine_wait(run->machine, passes, error));
    if (e->observer.receive) return observer_end_run(e, run, error);
    trace_end_run(e->trace, &run->request);
    return QP_OK;
}
