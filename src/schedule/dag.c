/* Which group of instructions waits for which, from what they read and write.
 *
 * The groups are taken in the program's order. For every area there is a list of the groups that
 * touched its rows and columns since they were last overwritten; a row of a cache is a page. A
 * group depends on an earlier one if their regions overlap and one of the two writes: it reads that
 * group's value, overwrites it, or writes bytes of the arena that it still reads. Two groups that
 * both add to sums do not depend on each other. Dependencies that follow from others are left out.
 * counters.c turns the others into waits.
 */
#include "schedule/dag.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void dag_push(dag *g, int_list *list, int value)
{
    int *items = draft_grow(list->items, &list->capacity, list->count, sizeof *items);
    if (!items) {
        g->failed = true;
        return;
    }
    list->items = items;
    items[list->count++] = value;
}

static bool changes(const program_area *area)
{
    return program_changes(area->base);
}

static void find_overlaps(dag *g)
{
    const schedule *s = g->draft->out;
    for (int a = 0; a < s->program->n_areas; a++) {
        const program_area *one = &s->program->areas[a];
        if (!changes(one)) continue;
        dag_push(g, &g->overlaps[a], a);
        for (int b = 0; b < s->program->n_areas; b++) {
            const program_area *other = &s->program->areas[b];
            if (a != b && one->base == other->base && one->offset < other->offset + other->bytes &&
                other->offset < one->offset + one->bytes)
                dag_push(g, &g->overlaps[a], b);
        }
    }
}

/* The bytes of a row that a view covers; all of them if the area has no rows. */
static void view_columns(const schedule *s, const program_view *view, uint64_t columns[2])
{
    const program_area *area = &s->program->areas[view->area];
    columns[0] = 0;
    columns[1] = area->row_bytes ? area->row_bytes : area->bytes;
    if (area->row_bytes == 0 || view->shape[0] >= 0) return;
    uint64_t bytes = dtype_block_bytes(view->type);
    for (int d = 1; d < view->rank; d++)
        bytes *= (uint64_t)view->shape[d];
    columns[0] = view->offset;
    columns[1] = view->offset + bytes;
}

/* The call of a node, for what its units touch. */
static const op_call *call_of(dag *g, int node)
{
    if (g->bound != node + 1)
        program_bind(g->draft->out->program, node, NULL, g->draft->out->program->capacity.of,
                     &g->call);
    g->bound = node + 1;
    return &g->call;
}

/* The bytes of a row that a group's segment touches. */
static void segment_columns(dag *g, const draft_group *group, int operand, const program_view *view,
                            uint64_t columns[2])
{
    const program_area *area = &g->draft->out->program->areas[view->area];
    const op_info *op = op_get(g->draft->out->program->nodes[group->node].op);
    view_columns(g->draft->out, view, columns);
    bool whole = group->units[0] == 0 && g->draft->segments[group->node].count == 0;
    if (whole || !op->columns || area->row_bytes == 0 || view->shape[0] >= 0) return;
    op_columns part =
        op->columns(call_of(g, group->node), operand, group->units[0], group->units[1]);
    uint64_t element = dtype_block_bytes(view->type);
    columns[0] = view->offset + (uint64_t)part.begin * element;
    columns[1] = view->offset + (uint64_t)part.end * element;
}

static access access_of(dag *g, int group, int operand)
{
    const schedule *s = g->draft->out;
    const draft_group *of = &g->draft->groups[group];
    const program_node *node = &s->program->nodes[of->node];
    const program_view *view = &s->program->views[node->operands[operand]];
    access a = {.group = group, .area = view->area, .rows = {0, INSTRUCTION_ALL_TOKENS}};
    op_direction direction = op_get(node->op)->tensors[operand].direction;
    a.kind = direction == OP_IN           ? ACCESS_READ
             : direction == OP_ACCUMULATE ? ACCESS_ADD
                                          : ACCESS_WRITE;
    if (view->shape[0] == -(int64_t)node->row_axis) a.rows = of->tokens;
    segment_columns(g, of, operand, view, a.columns);
    return a;
}

/* The access as bytes from the base, for comparing different tensors. */
static void byte_range(const schedule *s, const access *a, uint64_t range[2])
{
    const program_area *area = &s->program->areas[a->area];
    range[0] = area->offset;
    range[1] = area->offset + area->bytes;
    if (area->row_bytes == 0 || a->rows.end == INSTRUCTION_ALL_TOKENS) return;
    uint64_t end = area->offset + (uint64_t)a->rows.end * area->row_bytes;
    range[0] = area->offset + (uint64_t)a->rows.begin * area->row_bytes;
    if (end < range[1]) range[1] = end;
}

static bool conflicts(const schedule *s, const access *a, const access *b)
{
    if (a->kind == b->kind && a->kind != ACCESS_WRITE) return false;
    if (a->area == b->area)
        return a->rows.begin < b->rows.end && b->rows.begin < a->rows.end &&
               a->columns[0] < b->columns[1] && b->columns[0] < a->columns[1];
    uint64_t x[2], y[2];
    byte_range(s, a, x);
    byte_range(s, b, y);
    return x[0] < y[1] && y[0] < x[1];
}

static bool comes_before(const dag *g, int earlier, int later)
{
    return g->reach[(size_t)later * g->words + (size_t)earlier / 64] >> (earlier % 64) & 1;
}

static int descending(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

/* Sets what group `at` needs, out of `found`: the latest first, because what that one needs itself
 * need not be waited for again. */
static void reduce(dag *g, int at, int_list *found)
{
    if (found->count) qsort(found->items, (size_t)found->count, sizeof(int), descending);
    uint64_t *mine = g->reach + (size_t)at * g->words;
    for (int i = 0; i < found->count; i++) {
        int from = found->items[i];
        if (comes_before(g, from, at)) continue;
        dag_push(g, &g->needs[at], from);
        const uint64_t *theirs = g->reach + (size_t)from * g->words;
        for (size_t w = 0; w < g->words; w++)
            mine[w] |= theirs[w];
        mine[from / 64] |= (uint64_t)1 << (from % 64);
    }
}

/* Finds the groups of earlier nodes that a group must come after. */
static void link_group(dag *g, int at, int_list *found)
{
    const schedule *s = g->draft->out;
    const program_node *node = &s->program->nodes[g->draft->groups[at].node];
    found->count = 0;
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        if (node->operands[i] == 0) continue;
        access a = access_of(g, at, i);
        const int_list *overlaps = &g->overlaps[a.area];
        for (int o = 0; o < overlaps->count; o++) {
            const access_list *list = &g->touched[overlaps->items[o]];
            for (int j = 0; j < list->count; j++) {
                if (conflicts(s, &a, &list->items[j])) dag_push(g, found, list->items[j].group);
            }
        }
    }
    reduce(g, at, found);
}

/* Removes earlier accesses to bytes that a node overwrites in all rows: the node comes after them,
 * and later nodes come after the node. */
static void forget(dag *g, const program_view *view)
{
    access_list *list = &g->touched[view->area];
    uint64_t columns[2];
    view_columns(g->draft->out, view, columns);
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        const access *a = &list->items[i];
        if (a->columns[0] >= columns[0] && a->columns[1] <= columns[1]) continue;
        list->items[kept++] = *a;
    }
    list->count = kept;
}

/* Whether a write replaces everything that was there. Caches are written in single slots, and a
 * node that adds to sums does not come after the others that do. */
static bool writes_all_rows(const schedule *s, const program_node *node, int operand)
{
    const program_view *view = &s->program->views[node->operands[operand]];
    op_direction direction = op_get(node->op)->tensors[operand].direction;
    return op_writes(direction) && direction != OP_ACCUMULATE &&
           changes(&s->program->areas[view->area]) && view->shape[0] == -(int64_t)node->row_axis;
}

static void remember(dag *g, int first_group, int end_group)
{
    const schedule *s = g->draft->out;
    const program_node *node = &s->program->nodes[g->draft->groups[first_group].node];
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        if (node->operands[i] && writes_all_rows(s, node, i))
            forget(g, &s->program->views[node->operands[i]]);
    }
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        if (node->operands[i] == 0) continue;
        access_list *list = &g->touched[s->program->views[node->operands[i]].area];
        if (!changes(&s->program->areas[s->program->views[node->operands[i]].area])) continue;
        for (int group = first_group; group < end_group; group++) {
            access *items = draft_grow(list->items, &list->capacity, list->count, sizeof *items);
            if (!items) {
                g->failed = true;
                return;
            }
            list->items = items;
            items[list->count++] = access_of(g, group, i);
        }
    }
}

int dag_end_of_node(const draft *d, int group)
{
    int end = group;
    while (end < d->n_groups && d->groups[end].node == d->groups[group].node)
        end++;
    return end;
}

/* The end of the pass comes after everything: it needs the groups that no other group needs. */
static void link_end(dag *g)
{
    int n = g->draft->n_groups;
    bool *needed = calloc((size_t)n, sizeof *needed);
    if (!needed) {
        g->failed = true;
        return;
    }
    for (int group = 0; group < n; group++) {
        for (int i = 0; i < g->needs[group].count; i++)
            needed[g->needs[group].items[i]] = true;
    }
    for (int group = 0; group < n; group++) {
        if (!needed[group]) dag_push(g, &g->needs[n], group);
    }
    free(needed);
}

static void link_all(dag *g)
{
    int_list found = {0};
    for (int group = 0; group < g->draft->n_groups && !g->failed;) {
        int end = dag_end_of_node(g->draft, group);
        for (int i = group; i < end; i++)
            link_group(g, i, &found);
        remember(g, group, end);
        group = end;
    }
    free(found.items);
    link_end(g);
}

static qp_status allocate(dag *g, qp_error *error)
{
    size_t groups = (size_t)g->draft->n_groups, areas = (size_t)g->draft->out->program->n_areas;
    g->words = (groups + 63) / 64;
    g->touched = calloc(areas, sizeof *g->touched);
    g->overlaps = calloc(areas, sizeof *g->overlaps);
    g->reach = calloc(groups * g->words, sizeof *g->reach);
    g->needs = calloc(groups + 1, sizeof *g->needs);
    g->together = calloc((size_t)g->draft->out->n_nodes, sizeof *g->together);
    g->n_groups_of = calloc((size_t)g->draft->out->n_nodes, sizeof *g->n_groups_of);
    g->counter_of = calloc(groups, sizeof *g->counter_of);
    if (g->touched && g->overlaps && g->reach && g->needs && g->together && g->n_groups_of &&
        g->counter_of) {
        for (size_t i = 0; i < groups; i++)
            g->n_groups_of[g->draft->groups[i].node]++;
        return QP_OK;
    }
    return error_no_memory(error, "the schedule's dependencies",
                           groups * g->words * sizeof *g->reach);
}

static void release(dag *g)
{
    for (int a = 0; a < g->draft->out->program->n_areas; a++) {
        if (g->touched) free(g->touched[a].items);
        if (g->overlaps) free(g->overlaps[a].items);
    }
    for (int i = 0; g->needs && i <= g->draft->n_groups; i++)
        free(g->needs[i].items);
    free(g->touched);
    free(g->overlaps);
    free(g->reach);
    free(g->needs);
    free(g->together);
    free(g->n_groups_of);
    free(g->counter_of);
}

qp_status dag_build(draft *d, qp_error *error)
{
    dag g = {.draft = d};
    d->n_counters = 1; /* counter 0 is none */
    d->counters = draft_grow(NULL, &d->counter_capacity, 0, sizeof *d->counters);
    qp_status status = allocate(&g, error);
    if (status == QP_OK && d->counters) {
        d->counters[0] = (draft_counter){0};
        find_overlaps(&g);
        link_all(&g);
        counters_make(&g);
    }
    release(&g);
    free(d->groups);
    free(d->items);
    free(d->lanes);
    d->groups = g.ordered;
    d->n_groups = g.n_ordered;
    d->items = g.items;
    d->n_items = g.n_items;
    d->lanes = g.lanes;
    if (status == QP_OK && (g.failed || !d->counters || !counters_number(d)))
        status = error_no_memory(error, "the schedule's dependencies", 0);
    return status;
}
