/* One side of a comparison: see diff_side.h. */
#include "inspect/diff/diff_side.h"

#include <stdlib.h>
#include <string.h>

bool diff_is_compared(plan_kind kind)
{
    return kind == PLAN_ACTIVATION || kind == PLAN_OUTPUT || kind == PLAN_CACHE ||
           kind == PLAN_CARRIED || kind == PLAN_STATE;
}

bool diff_side_keeps(const diff_side *s, plan_tensor_id id)
{
    return diff_is_compared(s->program->tensors[id].kind) && machine_keeps(s->of, id);
}

qp_status diff_side_open(diff_side *s, const program *p, machine *of, qp_error *error)
{
    *s = (diff_side){.of = of, .program = p};
    for (int id = 0; id < p->n_tensors; id++) {
        const plan_tensor *t = &p->tensors[id];
        if (!diff_is_compared(t->kind)) continue;
        void *copy = calloc(1, t->bytes + 1);
        if (!copy) return error_no_memory(error, "copies of tensors", t->bytes);
        s->memory.data[id] = copy;
    }
    return QP_OK;
}

void diff_side_close(diff_side *s)
{
    for (int id = 0; s->program && id < s->program->n_tensors; id++) {
        if (diff_is_compared(s->program->tensors[id].kind))
            free(diff_side_copy(s, (plan_tensor_id)id));
    }
}

void *diff_side_copy(const diff_side *s, plan_tensor_id id)
{
    return s->memory.data[id];
}

qp_status diff_side_fetch(const diff_side *s, plan_tensor_id id, int64_t layer,
                          const program_sizes *sizes, qp_error *error)
{
    return machine_read(s->of, id, layer, diff_side_copy(s, id),
                        program_tensor_bytes(s->program, id, sizes), error);
}

qp_status diff_side_write(const diff_side *to, const diff_side *from, plan_tensor_id id,
                          int64_t layer, const program_sizes *sizes, qp_error *error)
{
    return machine_write(to->of, id, layer, diff_side_copy(from, id),
                         program_tensor_bytes(to->program, id, sizes), error);
}

qp_status diff_side_hand(const diff_side *from, const diff_side *to, plan_tensor_id id,
                         int64_t layer, const program_sizes *sizes, qp_error *error)
{
    TRY(diff_side_fetch(from, id, layer, sizes, error));
    return diff_side_write(to, from, id, layer, sizes, error);
}

void diff_side_clear_sums(const diff_side *s, int step, const program_sizes *sizes)
{
    const program_step *about = &s->program->steps[step];
    for (int n = about->first_node; n < about->first_node + about->n_nodes; n++) {
        const op_info *op = op_get(s->program->nodes[n].op);
        op_call call;
        program_bind(s->program, n, &s->memory, sizes->of, &call);
        for (int i = 0; i < op_n_tensors(op); i++) {
            const tensor *sums = &call.tensors[i];
            if (op->tensors[i].direction != OP_ACCUMULATE) continue;
            for (int64_t row = 0; row < sums->shape[0]; row++)
                memset(tensor_row(sums, row), 0, dtype_row_bytes(sums->type, sums->shape[1]));
        }
    }
}
