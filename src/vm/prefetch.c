/* Finds where the weights of each slice begin: see prefetch.h. */
#include "vm/prefetch.h"

#include <stdlib.h>

/* Bytes to ask for per slice: no more than memory delivers during one wait, and much less than the
 * L2 cache holds. */
enum { PREFETCH_BYTES = 128 << 10 };

/* The slice's rows of a weight that kernels read as stored. */
static prefetch stored_weights(const schedule *s, const instruction *in, const op_call *call)
{
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = &s->program->views[in->operands[i]];
        if (view->rank != 2 || s->program->areas[view->area].base != BASE_WEIGHT) continue;
        const tensor *weight = &call->tensors[i];
        if (weight->shape[0] != call->end) continue; /* the units are not its rows */
        return (prefetch){(const char *)weight->data + in->units.begin * weight->stride[0],
                          (size_t)((in->units.end - in->units.begin) * weight->stride[0])};
    }
    return (prefetch){0};
}

static prefetch weights_of(const bound_schedule *setup, const instruction *in)
{
    const schedule *s = setup->schedule;
    if (in->opcode == INSTRUCTION_NOOP || !(in->flags & INSTRUCTION_ROW_SLICES))
        return (prefetch){0};
    const bound_kernel *kernel = &setup->kernels[in->node];
    prefetch found;
    if (kernel->packed) {
        size_t units = (size_t)(in->units.end - in->units.begin);
        found.data =
            (const char *)kernel->packed + (size_t)in->units.begin * kernel->packed_unit_bytes;
        found.bytes = units * kernel->packed_unit_bytes;
    } else {
        op_call call;
        program_bind(s->program, (int)in->node, setup->memory, s->program->capacity.of, &call);
        found = stored_weights(s, in, &call);
    }
    if (found.bytes > PREFETCH_BYTES) found.bytes = PREFETCH_BYTES;
    return found;
}

qp_status prefetch_table(const bound_schedule *setup, prefetch **out, qp_error *error)
{
    const schedule *s = setup->schedule;
    size_t n = (size_t)s->options.workers * (size_t)s->longest;
    *out = calloc(n ? n : 1, sizeof **out);
    if (!*out) return error_no_memory(error, "the machine", n * sizeof **out);
    for (int w = 0; w < s->options.workers; w++) {
        prefetch next = {0}, *row = *out + (size_t)w * (size_t)s->longest;
        for (int i = s->length[w] - 1; i >= 0; i--) {
            prefetch own = weights_of(setup, schedule_queue(s, w) + i);
            if (own.data) next = own;
            row[i] = next;
        }
    }
    return QP_OK;
}
