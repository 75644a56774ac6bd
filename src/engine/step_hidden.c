/* Last hidden states for qp_step().
 *
 * They are made of a row of the batch by the gather of rows and the final norm, and need no logits.
 * So that a pass may have more of them than rows of logits, the batch runs up to the gather, and
 * then the gather and the norm run for max_outputs rows at a time. If rows of logits are wanted
 * too, the steps from the gather on run once more for those. On a GPU rows of hidden states are
 * rows of logits, and one run computes both.
 */
#include "engine/step_parts.h"

#include <stdlib.h>

bool step_reads_hidden_apart(const qp_engine *e, const qp_sequence *all, size_t n)
{
    bool wanted = false;
    for (size_t i = 0; i < n; i++)
        wanted |= all[i].on_hidden != NULL;
    return wanted && !machine_inner_type(engine_memory(e))->on_gpu;
}

bool step_wants_hidden(const step_state *st)
{
    for (size_t i = 0; i < st->n_parts; i++)
        if (st->parts[i].n_hidden > 0) return true;
    return false;
}

/* The steps that make hidden states of the batch's rows: [first, last). */
typedef struct hidden_steps {
    int first, last;
} hidden_steps;

static hidden_steps steps_of(const program *p)
{
    hidden_steps s = {0, p->n_steps};
    while (s.first < p->n_steps && !program_step_access(p, s.first, PLAN_X_OUT).write)
        s.first++;
    while (s.last > s.first && !program_step_access(p, s.last - 1, PLAN_X_OUT).write)
        s.last--;
    return s;
}

void step_end_at_hidden(const qp_engine *e, machine_request *r)
{
    r->last = steps_of(&e->program).last;
}

void step_continue_after_hidden(const qp_engine *e, machine_request *r)
{
    r->first = steps_of(&e->program).first;
    r->last = e->program.logits_end;
}

static qp_status allocate(qp_engine *e, qp_error *error)
{
    const plan_options *o = &e->program.options;
    const int64_t rows = o->max_tokens > o->max_outputs ? o->max_tokens : o->max_outputs;
    const size_t bytes = (size_t)(rows * e->program.config.hidden_size) * sizeof(float);
    if (!e->step.hidden) e->step.hidden = malloc(bytes);
    return e->step.hidden ? QP_OK : error_no_memory(error, "hidden states", bytes);
}

static qp_status read_rows(qp_engine *e, int64_t first, int64_t n, qp_error *error)
{
    const int64_t d = e->program.config.hidden_size;
    return machine_read(engine_memory(e), PLAN_X_OUT, 0, e->step.hidden + first * d,
                        (size_t)(n * d) * sizeof(float), error);
}

qp_status step_read_hidden(qp_engine *e, qp_error *error)
{
    TRY(allocate(e, error));
    return read_rows(e, 0, batch_outputs(&e->batch), error);
}

/* Gathers and normalises rows [first, first + n) of hidden_rows. */
static qp_status run_rows(qp_engine *e, hidden_steps steps, int64_t first, int64_t n,
                          qp_error *error)
{
    batch rows = e->batch;
    rows.of[PLAN_OUTPUT_ROWS] = e->step.hidden_rows + first;
    rows.sizes.of[AXIS_OUTPUTS] = n;
    const machine_request r = {.batch = &rows, .first = steps.first, .last = steps.last};
    TRY(machine_pass(engine_memory(e), &r, error));
    return read_rows(e, first, n, error);
}

qp_status step_run_hidden(qp_engine *e, qp_error *error)
{
    const step_state *st = &e->step;
    const hidden_steps steps = steps_of(&e->program);
    const int64_t most = e->program.options.max_outputs;
    int passes;
    TRY(allocate(e, error));
    engine_run *run = step_next_run(e, 1);
    run->machine = engine_memory(e); /* other machines do not keep hidden states */
    run->request.last = steps.first;
    run->request.choice = MACHINE_LOGITS;
    TRY(engine_begin_run(e, run, error));
    TRY(engine_end_run(e, run, &passes, error));
    for (int64_t i = 0; i < st->n_hidden; i += most) {
        const int64_t left = st->n_hidden - i;
        TRY(run_rows(e, steps, i, left < most ? left : most, error));
    }
    return QP_OK;
}
