/* Nodes to instructions: the workers share a node's units.
 *
 * Output features are cut when the schedule is made, in groups that kernels take together, so
 * shares differ by one group at most; they are also cut where a segment ends (segment.c). In a
 * program with sums each segment gets workers of its own instead, so a worker has one instruction
 * of a node, and the data of a KV head stays with few workers. Operators that work row by row are
 * cut into parts, whose rows are computed when the instruction runs, because the batch decides how
 * many rows there are. In the throughput setting a node has instructions for each tile of rows; a
 * tile past the batch's end is empty. An exchange between ranks is one instruction, because all
 * ranks must make the same exchanges in the same order.
 */
#include "schedule/draft.h"

#include "base/threads.h"
#include "op/exchange.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

_Static_assert((int)INSTRUCTION_OPERANDS >= (int)OP_MAX_TENSORS, "a record holds all operands");

enum {
    FEATURES_TOGETHER = 16, /* output features that a kernel takes at a time */
    FEATURES_OF_SUMS = 4,   /* in a program with sums: four pairs, a tile of a GPU's tensor cores */
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
    bool columns;          /* units are cut now; else parts at run time */
    bool exchanges;        /* between ranks, all rows in one instruction */
    int64_t units;         /* of columns */
    int64_t group;         /* of columns that stay together */
    int64_t grain;         /* of units that stay together in parts */
    int64_t usual_per_row; /* units in a row */
    int64_t tile, n_tiles; /* of rows */
    segment_list segments; /* of columns */
} cut;

/* Features that stay together: those that kernels take at a time, however they take x. Units that
 * are worth an instruction of their own, such as heads, are not grouped. */
static int64_t group_of(const draft *d, op_code code, const op_call *call)
{
    const op_info *op = op_get(code);
    const int32_t *together = d->out->options.together;
    if (together && together[code] > 0) return together[code];
    if (op->grain == 0) return 1;
    if (d->out->options.group > 0) return d->out->options.group;
    if (d->out->program->options.sums) return FEATURES_OF_SUMS;
    int64_t group = FEATURES_TOGETHER;
    for (const op_variant *v = op->variants; v && v->name; v++) {
        bool takes = (v->needs & OP_X_BITS) == 0 && (!v->accepts || v->accepts(call));
        if (takes && v->pack_units > group) group = v->pack_units;
    }
    return group;
}

/* Whether a node needs the borders of sequences to know what a row is. */
static bool has_sequences(const schedule *s, const program_node *node)
{
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = &s->program->views[node->operands[i]];
        if (view->rank && view->shape[0] == -AXIS_SEQUENCE_ENDS) return true;
    }
    return false;
}

static cut cut_node(const draft *d, int node)
{
    const schedule *s = d->out;
    const op_info *op = op_get(s->program->nodes[node].op);
    op_call call;
    program_bind(s->program, node, NULL, s->program->capacity.of, &call);
    int64_t rows = s->program->capacity.of[s->program->nodes[node].row_axis];
    cut c = {.columns = op->columns != NULL, .units = call.end, .tile = rows, .n_tiles = 1};
    c.group = group_of(d, s->program->nodes[node].op, &call);
    c.grain = op->grain > 0 ? ELEMENT_GRAIN : 1;
    c.usual_per_row = c.columns ? 0 : call.end / rows;
    c.segments = d->segments[node];
    c.exchanges = op_exchanges(s->program->nodes[node].op);
    bool whole_rows = c.exchanges || (c.columns && has_sequences(s, &s->program->nodes[node]));
    if (s->options.setting == SCHEDULE_THROUGHPUT && !whole_rows) {
        c.tile = s->options.tile;
        if (divide_up(rows, c.tile) > MAX_TILES) c.tile = divide_up(rows, MAX_TILES);
        c.n_tiles = divide_up(rows, c.tile);
    }
    return c;
}

/* Adds an item; its turn among the workers is `lane` places after the next. */
static instruction *add_item(draft *d, int node, instruction_span tokens, int lane)
{
    instruction *items = draft_grow(d->items, &d->item_capacity, d->n_items, sizeof *items);
    if (items) d->items = items;
    int *lanes = draft_grow(d->lanes, &d->lane_capacity, d->n_items, sizeof *lanes);
    if (lanes) d->lanes = lanes;
    if (!items || !lanes) return NULL;
    const program_node *about = &d->out->program->nodes[node];
    lanes[d->n_items] = d->next_lane + lane;
    instruction *in = &items[d->n_items++];
    *in = (instruction){.opcode = (uint16_t)about->op,
                        .flags = op_exchanges(about->op) ? 0 : draft_sharing(d),
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

static draft_group *add_group(draft *d, int node, instruction_span tokens)
{
    draft_group *groups = draft_grow(d->groups, &d->group_capacity, d->n_groups, sizeof *groups);
    if (!groups) return NULL;
    d->groups = groups;
    draft_group *group = &groups[d->n_groups++];
    *group = (draft_group){.node = node, .tokens = tokens, .first = d->n_items};
    return group;
}

/* A tile of a node, and what its rows of the usual batch cost. */
typedef struct lowered_tile {
    int node;
    instruction_span tokens;
    int64_t rows; /* of the usual batch */
    cost_estimate cost;
} lowered_tile;

static uint32_t cost_of_share(const lowered_tile *tile, int64_t share, int64_t all)
{
    double ns = all > 0 ? tile->cost.ns * (double)share / (double)all : 0;
    return (uint32_t)fmin(tile->cost.fixed_ns + ns, 4e9);
}

/* Adds parts, whose units are computed when the instructions run. */
static bool add_parts(draft *d, const cut *c, const lowered_tile *tile)
{
    int64_t pieces = divide_up(tile->rows * c->usual_per_row, c->grain), begin, end;
    int n = (int)at_most(pieces > 0 ? pieces : 1, c->exchanges ? 1 : d->out->options.workers);
    draft_group *group = add_group(d, tile->node, tile->tokens);
    for (int i = 0; group && i < n; i++) {
        instruction *in = add_item(d, tile->node, tile->tokens, i);
        if (!in) return false;
        thread_share(pieces, i, n, &begin, &end);
        in->cost_ns = cost_of_share(tile, end - begin, pieces);
        in->part = (uint16_t)i;
        in->parts = (uint16_t)n;
        in->units.end = (int32_t)c->grain;
    }
    if (group) group->count = n;
    d->next_lane += n;
    return group != NULL;
}

/* One segment's part of the workers' shares: pieces [first, first + pieces) of `all`, each `group`
 * units but the segment's last. */
typedef struct segment {
    int64_t begin, end; /* units */
    int64_t first, pieces, all;
} segment;

static bool add_segment(draft *d, const cut *c, const lowered_tile *tile, const segment *part,
                        int n, int turn)
{
    draft_group *group = add_group(d, tile->node, tile->tokens);
    if (!group) return false;
    group->units[0] = part->begin;
    group->units[1] = part->end;
    for (int i = 0; i < n; i++) {
        int64_t begin, end, last = part->first + part->pieces;
        thread_share(part->all, i, n, &begin, &end);
        begin = begin > part->first ? begin : part->first;
        end = at_most(end, last);
        if (begin >= end) continue;
        instruction *in = add_item(d, tile->node, tile->tokens, (i + turn) % n);
        if (!in) return false;
        in->cost_ns = cost_of_share(tile, end - begin, part->all);
        in->flags |= INSTRUCTION_ROW_SLICES;
        in->units.begin = (int32_t)(part->begin + (begin - part->first) * c->group);
        in->units.end = (int32_t)at_most(part->begin + (end - part->first) * c->group, part->end);
        group->count++;
    }
    return true;
}

/* Gives every worker a share of the pieces, as many as others or one more, in one instruction, or
 * in several where a segment ends inside the share. The larger shares rotate among the workers from
 * node to node, so the totals differ by one piece at most. */
static bool add_slices(draft *d, const cut *c, const lowered_tile *tile)
{
    segment part = {0};
    for (int i = 0; i <= c->segments.count; i++) {
        int64_t end = i < c->segments.count ? c->segments.borders[i] : c->units;
        part.all += divide_up(end - part.begin, c->group);
        part.begin = end;
    }
    part.begin = 0;
    int n = (int)at_most(part.all > 0 ? part.all : 1, d->out->options.workers);
    int turn = d->next_larger % n;
    d->next_larger = (int)((turn + part.all) % n);
    for (int i = 0; i <= c->segments.count; i++) {
        part.end = i < c->segments.count ? c->segments.borders[i] : c->units;
        part.pieces = divide_up(part.end - part.begin, c->group);
        if (!add_segment(d, c, tile, &part, n, turn)) return false;
        part.first += part.pieces;
        part.begin = part.end;
    }
    d->next_lane += n;
    return true;
}

/* Gives the segment's workers [first, end) equal shares of it. */
static bool add_shares(draft *d, const cut *c, const lowered_tile *tile, const segment *part,
                       int first, int end)
{
    draft_group *group = add_group(d, tile->node, tile->tokens);
    if (!group) return false;
    group->units[0] = part->begin;
    group->units[1] = part->end;
    for (int i = first; i < end; i++) {
        int64_t from, to;
        thread_share(part->pieces, i - first, end - first, &from, &to);
        if (from >= to) continue;
        instruction *in = add_item(d, tile->node, tile->tokens, i);
        if (!in) return false;
        in->cost_ns = cost_of_share(tile, to - from, part->all);
        in->flags |= INSTRUCTION_ROW_SLICES;
        in->units.begin = (int32_t)(part->begin + from * c->group);
        in->units.end = (int32_t)at_most(part->begin + to * c->group, part->end);
        group->count++;
    }
    return true;
}

/* Gives every segment neighbouring workers of its own, the same in every node. */
static bool add_apart(draft *d, const cut *c, const lowered_tile *tile)
{
    int workers = d->out->options.workers, n = c->segments.count + 1;
    segment part = {.all = divide_up(c->units, c->group)};
    for (int i = 0; i < n; i++) {
        part.end = i + 1 < n ? c->segments.borders[i] : c->units;
        part.pieces = divide_up(part.end - part.begin, c->group);
        if (!add_shares(d, c, tile, &part, (int)((int64_t)workers * i / n),
                        (int)((int64_t)workers * (i + 1) / n)))
            return false;
        part.begin = part.end;
    }
    d->next_lane += workers;
    return true;
}

static bool add_tile(draft *d, int node, const cut *c, int64_t number)
{
    int64_t begin = number * c->tile, end = begin + c->tile, usual = cost_usual_rows(d, node);
    lowered_tile tile = {.node = node,
                         .tokens = {(int32_t)begin, (int32_t)end},
                         .rows = at_most(usual, end) - at_most(usual, begin)};
    if (c->n_tiles == 1) tile.tokens.end = INSTRUCTION_ALL_TOKENS;
    tile.cost = cost_of_rows(d, node, begin, tile.rows);
    if (!c->columns) return add_parts(d, c, &tile);
    return d->out->program->options.sums ? add_apart(d, c, &tile) : add_slices(d, c, &tile);
}

qp_status lower_nodes(draft *d, qp_error *error)
{
    const schedule *s = d->out;
    TRY(cost_begin(d, error));
    for (int node = 0; node < s->n_nodes; node++) {
        if (program_is_noop(s->program, node)) continue;
        assert(op_n_params(op_get(s->program->nodes[node].op)) <= INSTRUCTION_PARAMS);
        cut c = cut_node(d, node);
        if (c.units > INT32_MAX)
            return error_set(error, QP_UNSUPPORTED,
                             "%s has %lld units, an instruction counts to %d",
                             s->program->nodes[node].name, (long long)c.units, INT32_MAX);
        for (int64_t tile = 0; tile < c.n_tiles; tile++) {
            if (!add_tile(d, node, &c, tile))
                return error_no_memory(error, "the schedule",
                                       (size_t)d->n_items * sizeof *d->items);
        }
    }
    return QP_OK;
}
