/* From an instruction to an operator's call: what a machine does before every kernel. */
#include "schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

static void *base_of(const schedule_area *area, const schedule_memory *memory)
{
    switch (area->base) {
    case SCHEDULE_ARENA:
        return memory->arena;
    case SCHEDULE_INPUT:
    case SCHEDULE_STATE:
    case SCHEDULE_SUMS:
    case SCHEDULE_SUMS_NEXT:
        return memory->inputs[area->index];
    case SCHEDULE_TABLE:
        return memory->rope_table;
    case SCHEDULE_K_CACHE:
        return memory->k_cache;
    case SCHEDULE_V_CACHE:
        return memory->v_cache;
    case SCHEDULE_WEIGHT:
        return (void *)(uintptr_t)memory->weights[area->index];
    }
    return NULL;
}

static tensor bind_view(const schedule *s, int number, const schedule_memory *memory,
                        const int64_t *sizes)
{
    const schedule_view *view = &s->views[number];
    if (view->rank == 0) return (tensor){0};
    const schedule_area *area = &s->areas[view->area];
    char *base = memory ? base_of(area, memory) : NULL;
    tensor out = {.type = view->type, .rank = view->rank};
    if (base) out.data = base + area->offset + view->offset;
    for (int d = view->rank - 1; d >= 0; d--) {
        out.shape[d] = view->shape[d] < 0 ? sizes[-view->shape[d]] : view->shape[d];
        out.stride[d] = view->stride[d] ? view->stride[d] : out.shape[d + 1] * out.stride[d + 1];
    }
    return out;
}

void schedule_bind_node(const schedule *s, int node, const schedule_memory *memory,
                        const int64_t *sizes, op_call *call)
{
    const schedule_node *about = &s->nodes[node];
    *call = (op_call){0};
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        call->tensors[i] = bind_view(s, about->operands[i], memory, sizes);
    for (int i = 0; i < INSTRUCTION_PARAMS; i++)
        call->params[i] = (double)about->params[i];
    call->end = op_get(about->op)->units(call);
}

/* Cuts the operands that have a row for every row of the batch. */
static void slice_rows(const schedule *s, const instruction *in, instruction_span rows,
                       program_axis axis, op_call *call)
{
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const schedule_view *view = &s->views[in->operands[i]];
        if (view->rank == 0 || view->shape[0] != -(int64_t)axis) continue;
        call->tensors[i] =
            tensor_slice(call->tensors[i], 0, rows.begin, (int64_t)rows.end - rows.begin);
    }
}

bool schedule_bind(const schedule *s, const instruction *in, const schedule_memory *memory,
                   const int64_t *sizes, op_call *call)
{
    if (in->opcode == INSTRUCTION_NOOP) return false;
    program_axis axis = s->nodes[in->node].row_axis;
    instruction_span rows = instruction_rows(in, (int32_t)sizes[axis]);
    if (rows.begin >= rows.end) return false;
    *call = (op_call){0};
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        call->tensors[i] = bind_view(s, in->operands[i], memory, sizes);
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
