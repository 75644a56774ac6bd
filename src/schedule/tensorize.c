/* The queues as one array, which is copied to a device or into a file unchanged. */
#include "base/checked.h"
#include "schedule/draft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

qp_status tensorize_allocate(schedule *s, int longest, qp_error *error)
{
    size_t workers = (size_t)s->options.workers, bytes;
    if (!checked_mul(workers * (size_t)longest, sizeof *s->instructions, &bytes))
        return error_no_memory(error, "the schedule's queues", SIZE_MAX);
    s->longest = longest;
    s->length = arena_alloc(&s->memory, workers, sizeof *s->length);
    s->instructions = malloc(bytes ? bytes : 1);
    if (!s->length || !s->instructions)
        return error_no_memory(error, "the schedule's queues", bytes);
    const instruction noop = {.opcode = INSTRUCTION_NOOP};
    for (size_t i = 0; i < workers * (size_t)longest; i++)
        s->instructions[i] = noop;
    return QP_OK;
}

qp_status tensorize_queues(draft *d, qp_error *error)
{
    schedule *s = d->out;
    int *counts = calloc((size_t)s->options.workers, sizeof *counts), longest = 0;
    if (!counts) return error_no_memory(error, "the schedule's queues", 0);
    for (int i = 0; i < d->n_items; i++) {
        int length = ++counts[d->worker[i]];
        if (length > longest) longest = length;
    }
    free(counts);
    TRY(tensorize_allocate(s, longest, error));
    for (int i = 0; i < d->n_items; i++) {
        int item = d->queue[i], worker = d->worker[item];
        size_t at = (size_t)worker * (size_t)longest + (size_t)s->length[worker]++;
        assert(s->length[worker] <= longest);
        s->instructions[at] = d->items[item];
    }
    return QP_OK;
}
