/* Plan to instructions: a node's units are dealt over the workers.
 *
 * Output features are cut once and for all, in groups that kernels take together, so that workers
 * differ by one group at most. What goes row by row is cut into parts, which are dealt when the
 * instruction runs: how many rows there are is the batch's business. In the throughput setting a
 * node has instructions for each tile of rows; a tile past the batch's end is empty.
 */
#include "schedule/draft.h"

#include "base/threads.h"

#include <math.h>
#include <stdlib.h>

enum {
    FEATURES_TOGETHER = 16, /* output features that a kernel takes at a time */
    ELEMENT_GRAIN = 64,     /* elements that stay together where a unit is one */
    MAX_TILES = 64,
};

void *draft_grow(void *items, int *capacity, int count, size_t size)
{
    if (count < *capacity) return items;
    int wanted = *capacity ? *capacity * 2 : 256;
    void *larger = realloc(items, (size_t)wanted * size);
    if (larger) *capacity = wanted;
    return larger;
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* How a node is cut. */
typedef struct cut {
    bool columns;          /* units are cut now; else parts are dealt later */
    int64_t units;         /* of columns */
    int64_t group;         /* of columns that stay together */
    int64_t grain;         /* of units that stay together when parts are dealt */
    int64_t usual_per_row; /* units in a row */
    int64_t tile, n_tiles; /* of rows */
} cut;

static int64_t group_of(const schedule_options *o, const op_info *op, const op_call *call)
{
    if (o->group > 0) return o->group;
    int64_t group = FEATURES_TOGETHER;
    for (const op_variant *v = op->variants; v && v->name; v++) {
        bool takes = v->pack && (!v->accepts || v->accepts(call));
        if (takes && v->pack_units > group) group = v->pack_units;
    }
    return group;
}

static cut cut_node(const draft *d, int node)
{
    const schedule *s = d->out;
    const op_info *op = op_get(s->nodes[node].op);
    op_call call;
    schedule_bind_node(s, node, NULL, s->capacity, &call);
    int64_t rows = s->capacity[s->nodes[node].row_axis];
    cut c = {.columns = op->columns != NULL, .units = call.end, .tile = rows, .n_tiles = 1};
    c.group = group_of(&s->options, op, &call);
    c.grain = op->grain > 0 ? ELEMENT_GRAIN : 1;
    c.usual_per_row = c.columns ? 0 : call.end / rows;
    if (s->options.setting == SCHEDULE_THROUGHPUT) {
        c.tile = s->options.tile;
        if (divide_up(rows, c.tile) > MAX_TILES) c.tile = divide_up(rows, MAX_TILES);
        c.n_tiles = divide_up(rows, c.tile);
    }
    return c;
}

static instruction *add_item(draft *d, int node, instruction_span tokens)
{
    instruction *items = draft_grow(d->items, &d->item_capacity, d->n_items, sizeof *items);
    if (!items) return NULL;
    d->items = items;
    const schedule_node *about = &d->out->nodes[node];
    instruction *in = &items[d->n_items++];
    *in = (instruction){.opcode = (uint16_t)about->op,
                        .step = (uint16_t)about->step,
                        .layer = (int16_t)about->layer,
                        .node = (uint32_t)node,
                        .tokens = tokens};
    for (int i = 0; i < INSTRUCTION_PARAMS; i++)
        in->params[i] = about->params[i];
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        in->operands[i] = about->operands[i];
    return in;
}

/* The slices of one tile. Those that are larger by a group go round, so that node after node a
 * worker has one group more than another at most. `rows` of the tile are there in the usual
 * batch. */
static bool add_slices(draft *d, int node, const cut *c, instruction_span tokens, int64_t rows,
                       const cost_estimate *cost)
{
    int64_t pieces =
        c->columns ? divide_up(c->units, c->group) : divide_up(rows * c->usual_per_row, c->grain);
    int n = (int)at_most(pieces > 0 ? pieces : 1, d->out->options.workers);
    int turn = c->columns ? d->next_larger % n : 0;
    if (c->columns) d->next_larger = (int)((turn + pieces) % n);
    for (int i = 0; i < n; i++) {
        instruction *in = add_item(d, node, tokens);
        if (!in) return false;
        int64_t begin, end;
        thread_share(pieces, (i + n - turn) % n, n, &begin, &end);
        double ns = pieces > 0 ? cost->ns * (double)(end - begin) / (double)pieces : 0;
        in->cost_ns = (uint32_t)fmin(cost->fixed_ns + ns, 4e9);
        if (c->columns) {
            in->flags = INSTRUCTION_ROW_SLICES;
            in->units.begin = (int32_t)(begin * c->group);
            in->units.end = (int32_t)at_most(end * c->group, c->units);
        } else {
            in->part = (uint16_t)i;
            in->parts = (uint16_t)n;
            in->units.end = (int32_t)c->grain;
        }
    }
    return true;
}

static bool add_group(draft *d, int node, const cut *c, int64_t tile)
{
    draft_group *groups = draft_grow(d->groups, &d->group_capacity, d->n_groups, sizeof *groups);
    if (!groups) return false;
    d->groups = groups;
    int64_t begin = tile * c->tile, end = begin + c->tile;
    int64_t usual = cost_usual_rows(d, node);
    int64_t rows = at_most(usual, end) - at_most(usual, begin);
    instruction_span tokens = {(int32_t)begin, (int32_t)end};
    if (c->n_tiles == 1) tokens.end = INSTRUCTION_ALL_TOKENS;
    draft_group *group = &groups[d->n_groups++];
    *group = (draft_group){.node = node, .tokens = tokens, .first = d->n_items};
    cost_estimate cost = cost_of_rows(d, node, begin, rows);
    if (!add_slices(d, node, c, tokens, rows, &cost)) return false;
    group->count = d->n_items - group->first;
    return true;
}

qp_status lower_nodes(draft *d, qp_error *error)
{
    const schedule *s = d->out;
    TRY(cost_begin(d, error));
    for (int node = 0; node < s->n_nodes; node++) {
        cut c = cut_node(d, node);
        if (c.units > INT32_MAX)
            return error_set(error, QP_UNSUPPORTED,
                             "%s has %lld units, an instruction counts to %d", s->nodes[node].name,
                             (long long)c.units, INT32_MAX);
        for (int64_t tile = 0; tile < c.n_tiles; tile++) {
            if (!add_group(d, node, &c, tile))
                return error_no_memory(error, "the schedule",
                                       (size_t)d->n_items * sizeof *d->items);
        }
    }
    return QP_OK;
}
