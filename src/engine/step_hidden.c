/* Last hidden states for qp_step().
 *
 * They are rows of x_out after the final norm, and need no logits. On the CPU they follow the rows
 * of logits there (AXIS_WANTED), as many as the batch has tokens. On a GPU rows of hidden states
 * are rows of logits.
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

void step_end_at_hidden(const qp_engine *e, machine_request *r)
{
    const program *p = &e->program;
    r->last = p->n_steps;
    while (r->last > 0 && !program_step_access(p, r->last - 1, PLAN_X_OUT).write)
        r->last--;
}

void step_want_hidden(qp_engine *e)
{
    for (int64_t i = 0; i < e->step.n_hidden; i++)
        batch_want_hidden(&e->batch, e->step.hidden_rows[i]);
}

static qp_status allocate(qp_engine *e, qp_error *error)
{
    const size_t bytes = e->program.tensors[PLAN_X_OUT].bytes;
    if (!e->step.hidden) e->step.hidden = malloc(bytes);
    return e->step.hidden ? QP_OK : error_no_memory(error, "hidden states", bytes);
}

qp_status step_read_hidden(qp_engine *e, qp_error *error)
{
    const int64_t rows = e->batch.sizes.of[AXIS_WANTED], d = e->program.config.hidden_size;
    TRY(allocate(e, error));
    return machine_read(engine_memory(e), PLAN_X_OUT, 0, e->step.hidden,
                        (size_t)(rows * d) * sizeof(float), error);
}
