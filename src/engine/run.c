/* The engine's runs: which machine takes a request, and what a trace records of it. See engine.h.
 */
#include "engine/engine.h"

const machine *engine_find_machine(const qp_engine *e, const machine_request *request)
{
    for (int i = 0; i < e->n_machines; i++)
        if (!machine_accepts(engine_machine(e, i), request)) return engine_machine(e, i);
    return NULL;
}

machine_pace engine_pace(const qp_engine *e, int64_t n_sequences, machine_choice choice)
{
    machine_pace pace = {0};
    for (int i = 0; i < e->n_machines && pace.passes == 0; i++)
        pace = machine_pace_of(engine_machine(e, i), n_sequences, choice);
    return pace;
}

qp_status engine_begin_run(qp_engine *e, engine_run *run, qp_error *error)
{
    run->machine = engine_find_machine(e, &run->request);
    if (!run->machine)
        return error_set(error, QP_UNSUPPORTED, "%s",
                         machine_accepts(engine_memory(e), &run->request));
    trace_begin_run(e->trace, run->machine, &run->request);
    return machine_run(run->machine, &run->request, error);
}

qp_status engine_end_run(qp_engine *e, const engine_run *run, int *passes, qp_error *error)
{
    TRY(machine_wait(run->machine, passes, error));
    trace_end_run(e->trace, &run->request);
    return QP_OK;
}

qp_status engine_run_batch(qp_engine *e, float **logits, qp_error *error)
{
    engine_run run = {.request = {.batch = &e->batch, .logits = logits != NULL}};
    TRY(engine_begin_run(e, &run, error));
    TRY(engine_end_run(e, &run, NULL, error));
    if (logits) *logits = machine_logits(run.machine);
    return QP_OK;
}
