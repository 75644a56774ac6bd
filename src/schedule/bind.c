/* Makes the operator's call of an instruction, before every kernel. */
#include "schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

/* Cuts the operands that have a row for every row of the batch. */
static void slice_rows(const schedule *s, const instruction *in, instruction_span rows,
                       program_axis axis, op_call *call)
{
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = &s->program->views[in->operands[i]];
        if (view->rank == 0 || view->shape[0] != -(int64_t)axis) continue;
        call->tensors[i] =
            tensor_slice(call->tensors[i], 0, rows.begin, (int64_t)rows.end - rows.begin);
    }
}

bool schedule_bind(const schedule *s, const instruction *in, const program_memory *memory,
                   const int64_t *sizes, op_call *call)
{
    if (in->opcode == INSTRUCTION_NOOP) return false;
    program_axis axis = s->program->nodes[in->node].row_axis;
    instruction_span rows = instruction_rows(in, (int32_t)sizes[axis]);
    if (rows.begin >= rows.end) return false;
    *call = (op_call){0};
    for (int i = 0; i < OP_MAX_TENSORS; i++) /* view 0 is no operand */
        if (in->operands[i])
            call->tensors[i] = program_bind_view(s->program, in->operands[i], memory, sizes);
    for (int i = 0; i < INSTRUCTION_PARAMS; i++)
        call->params[i] = (double)in->params[i];
    if (in->flags & INSTRUCTION_ROW_SLICES) slice_rows(s, in, rows, axis, call);
    int64_t units = op_get((op_code)in->opcode)->units(call);
    instruction_units(in, units, (int32_t)sizes[axis], &call->begin, &call->end);
    return call->begin < call->end;
}

void schedule_free(schedule *s)
{
    free(s->instructions);
    arena_free(&s->memory);
    *s = (schedule){0};
}

static const char *const settings[] = {"latency", "throughput", NULL};
static const char *const assignments[] = {"rr", "zz", "wave", "dag", "pool", NULL};

const char *schedule_setting_name(int setting)
{
    return setting >= 0 && setting <= SCHEDULE_THROUGHPUT ? settings[setting] : NULL;
}

const char *schedule_assignment_name(int assignment)
{
    return assignment >= 0 && assignment <= SCHEDULE_POOL ? assignments[assignment] : NULL;
}
