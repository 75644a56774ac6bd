/* The cut of shared instructions: see cells.h. */
#include "vm/cells.h"

#include "op/attention/tile.h"
#include "op/linear_experts/linear_experts.h"
#include "op/paged_prefill/pieces.h"

#include <math.h>
#include <stdlib.h>

enum {
    CELL_BYTES = 64 << 10, /* weights that a cell of few rows reads: some 5 to 10 us */
    LEAST_UNITS = 32,      /* columns of such a cell: what kernels read as one stream */
    MOST_OF_SLICE = 32,    /* such cells of an instruction: with few workers they are larger */
    MANY_ROWS = 17,        /* from here on rows are cut too */
    ROW_STEP = 32,         /* rows that kernels take together */
    LEAST_COLUMNS = 64,
    CELLS_EACH = 6,      /* that an instruction has of a grid, so that none ends late */
    COLUMNS_PER_ROW = 3, /* of such a cell's shape */
    ELEMENTS = 16384,    /* of a cell where a unit is an element */
    QUERIES = 12,        /* tokens that attention takes together, with all heads of a group */
    NORM_ROWS = 8,
    UNITS_OF_EXPERTS = 128, /* with many rows, which a cell prepares for each expert */
    ENOUGH_HEADS = 4,       /* KV heads of tokens for each worker: then positions are not cut */
    MOST_CELLS = 65535,     /* a claim counts to this */
};

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t at_least(int64_t a, int64_t least)
{
    return a > least ? a : least;
}

static int64_t at_most(int64_t a, int64_t most)
{
    return a < most ? a : most;
}

/* Bytes of weights that a unit reads, where units are rows of weights, or of those of each expert
 * that a token uses. */
static int64_t weight_bytes(const schedule *s, const op_call *call, int node)
{
    int64_t bytes = 0;
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = program_operand(s->program, node, i);
        const tensor *weight = &call->tensors[i];
        if (view->rank < 2 || s->program->areas[view->area].base != BASE_WEIGHT) continue;
        const int64_t each = view->rank == 3 ? call->tensors[LINEAR_EXPERTS_IDS].shape[1] : 1;
        if (weight->shape[view->rank - 2] == call->end)
            bytes += each * (int64_t)dtype_row_bytes(weight->type, weight->shape[view->rank - 1]);
    }
    return bytes;
}

/* Attention by kernels that make states of segments. */
static segments_room room_of(const bound_schedule *setup, int node)
{
    const schedule *s = setup->schedule;
    if (!setup->kernels || !paged_prefill_has_pieces(setup->kernels[node].kernel))
        return (segments_room){0};
    return segments_room_of(s->program, node, s->options.workers);
}

static cell_rule rule_of(const bound_schedule *setup, int node)
{
    const schedule *s = setup->schedule;
    const op_code code = s->program->nodes[node].op;
    const op_info *op = op_get(code);
    const int64_t rows = s->program->capacity.of[s->program->nodes[node].row_axis];
    op_call call;
    program_bind(s->program, node, NULL, s->program->capacity.of, &call);
    cell_rule rule = {.units = INT64_MAX, .room = room_of(setup, node)};
    if (op->columns) {
        const int64_t bytes = weight_bytes(s, &call, node);
        const bool experts = code == OP_LINEAR_EXPERTS;
        if ((code != OP_LINEAR && !experts) || bytes == 0) return rule;
        rule.by_rows = !experts;
        rule.many_units = experts ? UNITS_OF_EXPERTS : 0;
        rule.units = at_least(CELL_BYTES / bytes / LEAST_UNITS * LEAST_UNITS, LEAST_UNITS);
        return rule;
    }
    rule.per_row = rows > 0 ? call.end / rows : 0;
    rule.units =
        op->grain > 0 ? ELEMENTS : rule.per_row * (code == OP_PAGED_PREFILL ? QUERIES : NORM_ROWS);
    return rule;
}

qp_status cells_make_rules(const bound_schedule *setup, cell_rule **out, qp_error *error)
{
    const schedule *s = setup->schedule;
    *out = calloc((size_t)s->n_nodes + 1, sizeof **out);
    if (!*out) return error_no_memory(error, "the machine", (size_t)s->n_nodes * sizeof **out);
    for (int n = 0; n < s->n_nodes; n++)
        if (!program_is_noop(s->program, n)) (*out)[n] = rule_of(setup, n);
    return QP_OK;
}

/* All of the band's rows and columns as one grid, of which the member has an equal part. A kernel
 * prepares the rows of a cell, at the cost of about 12 columns, and its weights, at that of 4 rows:
 * both together cost least with three times as many columns as rows. */
static cell_cut cut_grid(const cell_band *band, int member, instruction_span rows)
{
    const int64_t count = rows.end - rows.begin, columns = band->end - band->begin;
    const double area = (double)count * (double)columns / (band->members * CELLS_EACH);
    const int64_t blocks = (int64_t)((double)count / sqrt(area / COLUMNS_PER_ROW) + 0.5);
    cell_cut cut = {.begin = band->begin, .end = band->end, .rows = rows};
    const int64_t block = divide_up(count, at_least(blocks, 1));
    cut.block = (int32_t)(divide_up(block, ROW_STEP) * ROW_STEP);
    cut.units =
        divide_up((int64_t)(area / (double)at_most(cut.block, count)), LEAST_UNITS) * LEAST_UNITS;
    cut.units = at_least(cut.units, LEAST_COLUMNS);
    cut.across = divide_up(columns, cut.units);
    const int64_t all = cut.across * divide_up(count, cut.block);
    cut.first = (int32_t)(all * member / band->members);
    cut.count = (int32_t)(all * (member + 1) / band->members) - cut.first;
    return cut.count > 0 ? cut : (cell_cut){.count = 1, .across = 1};
}

/* All KV heads of all tokens, each in segments of positions; of these a member has an equal part.
 */
static bool cut_positions(const cell_rule *rule, const cell_band *band, int member, int32_t n_rows,
                          const int64_t *sizes, cell_cut *out)
{
    if (rule->room.group == 0) return false;
    const int64_t heads = n_rows * rule->per_row / rule->room.group;
    const int64_t segments = divide_up(sizes[AXIS_LONGEST_KV], ATTENTION_SEGMENT);
    const int64_t all = heads * segments;
    if (segments < 2 || heads >= ENOUGH_HEADS * band->members || all > rule->room.pieces)
        return false;
    *out = (cell_cut){.end = n_rows * rule->per_row,
                      .units = rule->room.group,
                      .across = heads,
                      .segments = (int32_t)segments,
                      .first = (int32_t)(all * member / band->members)};
    out->count = (int32_t)(all * (member + 1) / band->members) - out->first;
    if (out->count == 0) *out = (cell_cut){.count = 1, .across = 1};
    return true;
}

/* Whether other workers may take cells of an instruction that is the node's only one: of a norm,
 * RoPE or a copy to the cache, whose rows are many in a prompt. */
static bool is_shared_alone(const schedule *s, const cell_rule *rule, instruction_span rows)
{
    return s->options.workers > 1 && !rule->by_rows && rows.end - rows.begin >= MANY_ROWS;
}

cell_cut cells_cut(const schedule *s, const cell_rule *rule, const cell_band *band,
                   const instruction *in, int member, const int64_t *sizes, bool whole)
{
    cell_cut cut = {.count = 1, .across = 1};
    if (in->opcode == INSTRUCTION_NOOP) return cut;
    const int32_t n_rows = (int32_t)sizes[s->program->nodes[in->node].row_axis];
    const instruction_span rows = instruction_rows(in, n_rows);
    if (rows.begin >= rows.end) return cut;
    whole = whole || (band->members == 1 && !is_shared_alone(s, rule, rows));
    if (rule->by_rows && rows.end - rows.begin >= MANY_ROWS && !whole)
        return cut_grid(band, member, rows);
    if (!whole && rows.begin == 0 && rows.end == n_rows &&
        cut_positions(rule, band, member, n_rows, sizes, &cut))
        return cut;
    instruction_units(in, rule->per_row * n_rows, n_rows, &cut.begin, &cut.end);
    cut.units = at_least(cut.end - cut.begin, 1);
    if (whole) return cut;
    int64_t least = divide_up(cut.units, rule->by_rows ? MOST_OF_SLICE : MOST_CELLS);
    if (rule->by_rows) least = divide_up(least, LEAST_UNITS) * LEAST_UNITS;
    if (rows.end - rows.begin >= MANY_ROWS) least = at_least(least, rule->many_units);
    cut.units = at_most(at_least(rule->units, least), cut.units);
    cut.across = at_least(divide_up(cut.end - cut.begin, cut.units), 1);
    cut.count = (int32_t)cut.across;
    return cut;
}

static cell segment_at(const cell_cut *cut, int32_t number)
{
    const int64_t begin = number / cut->segments * cut->units;
    return (cell){.begin = begin, .end = begin + cut->units, .segment = number % cut->segments};
}

cell cells_at(const cell_cut *cut, int32_t number)
{
    if (cut->segments) return segment_at(cut, cut->first + number);
    const int64_t across = (cut->first + number) % cut->across;
    const int64_t block = (cut->first + number) / cut->across * cut->block;
    const int64_t begin = cut->begin + across * cut->units, row = cut->rows.begin + block;
    return (cell){.begin = begin,
                  .end = at_most(begin + cut->units, cut->end),
                  .rows = {(int32_t)row, (int32_t)at_most(row + cut->block, cut->rows.end)}};
}
