/* What each record of a schedule says by itself, and that the slices of a node's instructions cover
 * every unit once: see verifier.h.
 */
#include "schedule/verifier.h"

#include <stdlib.h>
#include <string.h>

/* ---- Records ------------------------------------------------------------------------------- */

static bool says_what_its_node_says(const schedule *s, const instruction *in)
{
    const program_node *node = &s->program->nodes[in->node];
    if (in->opcode != (uint16_t)node->op || in->step != node->step || in->layer != node->layer)
        return false;
    for (int i = 0; i < INSTRUCTION_OPERANDS; i++) {
        if (in->operands[i] != (i < OP_MAX_TENSORS ? node->operands[i] : 0)) return false;
    }
    return memcmp(in->params, node->params, sizeof in->params) == 0;
}

static qp_status check_waits(const verifier *v, int32_t index)
{
    const schedule *s = v->s;
    const instruction *in = verifier_at(v, index);
    if (in->signal >= (uint32_t)s->n_counters)
        return verifier_refuse(v, index, "its signal is not a counter of the schedule");
    if (verifier_is_shared(v, index) && in->signal == 0)
        return verifier_refuse(v, index, "it is shared, but does not signal that it has ended");
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        const instruction_wait *wait = &in->waits[w];
        if (wait->counter >= (uint32_t)s->n_counters)
            return verifier_refuse(v, index, "its wait is not for a counter of the schedule");
        if (wait->counter == 0) {
            if (wait->needed || in->flags >> w & 1)
                return verifier_refuse(v, index, "it gives a number of signals without a counter");
            continue;
        }
        if (wait->needed < 1 || wait->needed > s->per_pass[wait->counter])
            return verifier_refuse(v, index,
                                   "it waits for no signals, or for more than there are in a pass");
    }
    return QP_OK;
}

/* Whether an operator needs the borders of sequences, which count from the batch's first row. */
static bool needs_all_rows(const schedule *s, const instruction *in)
{
    for (int i = 0; i < INSTRUCTION_OPERANDS; i++) {
        const program_view *view = &s->program->views[in->operands[i]];
        if (view->rank && view->shape[0] == -AXIS_SEQUENCE_ENDS) return true;
    }
    return false;
}

static qp_status check_slice(const verifier *v, int32_t index)
{
    const instruction *in = verifier_at(v, index);
    bool columns = op_get((op_code)in->opcode)->columns != NULL;
    bool slices = (in->flags & INSTRUCTION_ROW_SLICES) != 0;
    if (in->tokens.begin < 0 || in->tokens.begin >= in->tokens.end || in->units.begin < 0)
        return verifier_refuse(v, index, "its rows or units are not a range");
    if (columns != slices || columns != (in->parts == 0))
        return verifier_refuse(v, index, "it is not cut in the way that its operator needs");
    if (columns && in->units.begin >= in->units.end)
        return verifier_refuse(v, index, "it has no units");
    bool all_rows = in->tokens.begin == 0 && in->tokens.end == INSTRUCTION_ALL_TOKENS;
    if (columns && !all_rows && needs_all_rows(v->s, in))
        return verifier_refuse(v, index, "its operator needs all rows of the batch");
    if (!columns && (in->part >= in->parts || in->units.begin != 0 || in->units.end < 1))
        return verifier_refuse(v, index, "its part is not one of its parts");
    return QP_OK;
}

static qp_status check_record(const verifier *v, int32_t index)
{
    const unsigned known = INSTRUCTION_PREVIOUS_0 | INSTRUCTION_PREVIOUS_1 |
                           INSTRUCTION_ROW_SLICES | INSTRUCTION_SHARED;
    const instruction *in = verifier_at(v, index);
    if (in->opcode > OP_COUNT || (in->flags & ~known) || in->zero)
        return verifier_refuse(v, index, "its opcode or flags are unknown");
    TRY(check_waits(v, index));
    if (in->opcode == INSTRUCTION_NOOP) return QP_OK;
    if (in->node >= (uint32_t)v->s->n_nodes || program_is_noop(v->s->program, (int)in->node) ||
        !says_what_its_node_says(v->s, in))
        return verifier_refuse(v, index, "it differs from its node");
    return check_slice(v, index);
}

qp_status verifier_check_records(verifier *v)
{
    const schedule *s = v->s;
    static const instruction padding = {.opcode = INSTRUCTION_NOOP};
    for (int w = 0; w < v->workers; w++) {
        if (s->length[w] < 0 || s->length[w] > s->longest)
            return error_set(v->error, QP_INVALID, "schedule: queue %d has %d of %d instructions",
                             w, s->length[w], s->longest);
        for (int i = 0; i < s->longest; i++) {
            int32_t index = w * s->longest + i;
            if (i < s->length[w])
                TRY(check_record(v, index));
            else if (memcmp(verifier_at(v, index), &padding, sizeof padding) != 0)
                return verifier_refuse(v, index, "it is after its queue's end");
        }
    }
    return QP_OK;
}

/* ---- Every unit once ------------------------------------------------------------------------ */

qp_status verifier_sort_by_node(verifier *v)
{
    const schedule *s = v->s;
    for (int w = 0; w < v->workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            const instruction *in = verifier_at(v, w * s->longest + i);
            if (in->opcode != INSTRUCTION_NOOP) v->node_first[in->node + 1]++;
        }
    }
    for (int n = 0; n < s->n_nodes; n++)
        v->node_first[n + 1] += v->node_first[n];
    int32_t *next = calloc((size_t)s->n_nodes, sizeof *next);
    if (!next) return error_no_memory(v->error, "the proof of the schedule", 0);
    memcpy(next, v->node_first, (size_t)s->n_nodes * sizeof *next);
    for (int w = 0; w < v->workers; w++) {
        for (int i = 0; i < s->length[w]; i++) {
            int32_t index = w * s->longest + i;
            if (verifier_at(v, index)->opcode != INSTRUCTION_NOOP)
                v->by_node[next[verifier_at(v, index)->node]++] = index;
        }
    }
    free(next);
    return QP_OK;
}

typedef struct slice {
    int32_t row, end_row, from, to, index;
} slice;

static int by_row_then_unit(const void *a, const void *b)
{
    const slice *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from);
}

/* A slice as a rectangle: rows by units, or rows by part numbers. */
static slice slice_from(const verifier *v, int32_t index)
{
    const instruction *in = verifier_at(v, index);
    slice out = {in->tokens.begin, in->tokens.end, in->units.begin, in->units.end, index};
    if (in->parts) {
        out.from = in->part;
        out.to = in->part + 1;
    }
    return out;
}

/* Sorted slices must form bands of equal rows, one after the other, each complete. */
static qp_status check_bands(const verifier *v, const slice *slices, int n, int64_t width,
                             int64_t rows)
{
    int32_t row = 0;
    for (int i = 0; i < n;) {
        const slice *band = &slices[i];
        const instruction *in = verifier_at(v, band->index);
        int64_t unit = 0, end = in->parts ? in->parts : width;
        if (band->row != row)
            return verifier_refuse(v, band->index, "rows before it are not computed");
        for (; i < n && slices[i].row == row; i++) {
            const instruction *other = verifier_at(v, slices[i].index);
            if (slices[i].from != unit || slices[i].end_row != band->end_row ||
                other->parts != in->parts || (in->parts && other->units.end != in->units.end))
                return verifier_refuse(v, slices[i].index,
                                       "its slice does not begin where its neighbour's ends");
            unit = slices[i].to;
        }
        if (unit != end) return verifier_refuse(v, band->index, "units beside it are not computed");
        row = band->end_row;
    }
    if (row >= rows) return QP_OK;
    return error_set(v->error, QP_INVALID, "schedule: rows from %d of a node are not computed",
                     row);
}

qp_status verifier_check_cover(verifier *v)
{
    const schedule *s = v->s;
    slice *slices = calloc((size_t)v->node_first[s->n_nodes] + 1, sizeof *slices);
    if (!slices) return error_no_memory(v->error, "the proof of the schedule", 0);
    qp_status status = QP_OK;
    for (int node = 0; node < s->n_nodes && status == QP_OK; node++) {
        if (program_is_noop(s->program, node)) continue;
        int first = v->node_first[node], n = v->node_first[node + 1] - first;
        for (int i = 0; i < n; i++)
            slices[i] = slice_from(v, v->by_node[first + i]);
        qsort(slices, (size_t)n, sizeof *slices, by_row_then_unit);
        op_call call;
        program_bind(s->program, node, NULL, s->program->capacity.of, &call);
        status = check_bands(v, slices, n, call.end,
                             s->program->capacity.of[s->program->nodes[node].row_axis]);
    }
    free(slices);
    return status;
}
