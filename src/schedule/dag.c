/* Which group of instructions waits for which, from what they read and write.
 *
 * The groups are taken in the program's order. For every area there is a list of the groups that
 * touched its rows and columns since they were last overwritten; a row of a cache is a page. A
 * group depends on an earlier one if their regions overlap and one of the two writes: it reads that
 * group's value, overwrites it, or writes bytes of the arena that it still reads. Two groups that
 * both add to sums do not depend on each other. Dependencies that follow from others are left out.
 * The rest become counters: all instructions of a producing group signal one counter, and consumers
 * wait until all of them have.
 */
#include "schedule/draft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum access_kind { ACCESS_READ, ACCESS_ADD, ACCESS_WRITE } access_kind;

/* What a group does to a tensor. */
typedef struct access {
    int group, area;
    access_kind kind;
    instruction_span rows;
    uint64_t columns[2]; /* bytes of a row: begin, end */
} access;

typedef struct access_list {
    access *items;
    int count, capacity;
} access_list;

typedef struct int_list {
    int *items;
    int count, capacity;
} int_list;

typedef struct dag {
    draft *draft;
    access_list *touched; /* [areas] */
    int_list *overlaps;   /* [areas]: areas that share bytes with it, itself first */
    uint64_t *reach;      /* [groups][words]: groups that come before, directly or not */
    size_t words;
    int_list *needs;      /* [groups + 1]: direct predecessors; the last: the end of the pass */
    bool *together;       /* [nodes]: all groups signal one counter */
    int *n_groups_of;     /* [nodes] */
    draft_group *ordered; /* groups with joiners among them */
    int n_ordered, ordered_capacity;
    instruction *items;
    int n_items, item_capacity;
    int *lanes; /* of the items */
    int lane_capacity;
    int *counter_of; /* [groups], or [first group of the node] where `together` */
    op_call call;    /* of node `bound` - 1 */
    int bound;
    bool failed;
} dag;

static void push(dag *g, int_list *list, int value)
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
        push(g, &g->overlaps[a], a);
        for (int b = 0; b < s->program->n_areas; b++) {
            const program_area *other = &s->program->areas[b];
            if (a != b && one->base == other->base && one->offset < other->offset + other->bytes &&
                other->offset < one->offset + one->bytes)
                push(g, &g->overlaps[a], b);
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
        push(g, &g->needs[at], from);
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
                if (conflicts(s, &a, &list->items[j])) push(g, found, list->items[j].group);
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

static int end_of_node(const draft *d, int group)
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
        if (!needed[group]) push(g, &g->needs[n], group);
    }
    free(needed);
}

static void link_all(dag *g)
{
    int_list found = {0};
    for (int group = 0; group < g->draft->n_groups && !g->failed;) {
        int end = end_of_node(g->draft, group);
        for (int i = group; i < end; i++)
            link_group(g, i, &found);
        remember(g, group, end);
        group = end;
    }
    free(found.items);
    link_end(g);
}

/* How many of a node's groups are among what one group needs. */
static int count_of_node(const dag *g, const int_list *needs, int node)
{
    int count = 0;
    for (int i = 0; i < needs->count; i++)
        count += g->draft->groups[needs->items[i]].node == node;
    return count;
}

/* A node's tiles and segments share one counter if no group waits for only some of them, or if a
 * group would otherwise have more waits than an instruction holds. */
static void gather_groups(dag *g)
{
    const draft *d = g->draft;
    for (int node = 0; node < d->out->n_nodes; node++)
        g->together[node] = true;
    for (int pass = 0; pass < 2; pass++) {
        for (int group = 0; group <= d->n_groups; group++) {
            const int_list *needs = &g->needs[group];
            for (int i = 0; i < needs->count; i++) {
                int from = needs->items[i], node = d->groups[from].node;
                int count = count_of_node(g, needs, node);
                if (pass == 0 && count < g->n_groups_of[node]) g->together[node] = false;
                if (pass == 1 && count > 1 && needs->count > INSTRUCTION_WAITS)
                    g->together[node] = true;
            }
        }
    }
}

/* The counter that a group signals, made when it is first waited for. */
static int counter_of(dag *g, int group)
{
    draft *d = g->draft;
    int first = group, n_groups = 1;
    if (g->together[d->groups[group].node]) {
        while (first > 0 && d->groups[first - 1].node == d->groups[group].node)
            first--;
        n_groups = end_of_node(d, first) - first;
    }
    if (g->counter_of[first]) return g->counter_of[first];
    draft_counter *counters =
        draft_grow(d->counters, &d->counter_capacity, d->n_counters, sizeof *counters);
    if (!counters) {
        g->failed = true;
        return 0;
    }
    d->counters = counters;
    counters[d->n_counters] = (draft_counter){first, n_groups};
    return g->counter_of[first] = d->n_counters++;
}

/* Appends a group and its instructions to those in their final order. */
static void emit(dag *g, draft_group group, const instruction *items, const int *lanes)
{
    draft_group *ordered =
        draft_grow(g->ordered, &g->ordered_capacity, g->n_ordered, sizeof *ordered);
    if (!ordered) {
        g->failed = true;
        return;
    }
    g->ordered = ordered;
    group.first = g->n_items;
    ordered[g->n_ordered++] = group;
    for (int i = 0; i < group.count; i++) {
        instruction *all = draft_grow(g->items, &g->item_capacity, g->n_items, sizeof *all);
        if (all) g->items = all;
        int *lane = draft_grow(g->lanes, &g->lane_capacity, g->n_items, sizeof *lane);
        if (lane) g->lanes = lane;
        if (!all || !lane) {
            g->failed = true;
            return;
        }
        lane[g->n_items] = lanes[i];
        all[g->n_items++] = items[i];
    }
}

/* An instruction that waits for two counters and signals a third. */
static int join(dag *g, int node, int lane, int a, int b)
{
    draft *d = g->draft;
    draft_counter *counters =
        draft_grow(d->counters, &d->counter_capacity, d->n_counters, sizeof *counters);
    if (!counters) {
        g->failed = true;
        return 0;
    }
    d->counters = counters;
    counters[d->n_counters] = (draft_counter){g->n_ordered, 1};
    const program_node *about = &d->out->program->nodes[node];
    instruction noop = {.opcode = INSTRUCTION_NOOP,
                        .step = (uint16_t)about->step,
                        .layer = (int16_t)about->layer,
                        .node = (uint32_t)node,
                        .tokens = {0, INSTRUCTION_ALL_TOKENS}};
    draft_group joiner = {
        .node = node, .tokens = noop.tokens, .count = 1, .waits = {a, b}, .signal = d->n_counters};
    emit(g, joiner, &noop, &lane);
    return d->n_counters++;
}

/* The counters that a group waits for, two at most. If there are more, the worker that has the
 * group's first instruction joins them. */
static void choose_waits(dag *g, int at, int node, int waits[INSTRUCTION_WAITS])
{
    const draft *d = g->draft;
    int lane = d->lanes[at < d->n_groups ? d->groups[at].first : d->n_items - 1];
    int_list counters = {0};
    for (int i = 0; i < g->needs[at].count; i++) {
        int counter = counter_of(g, g->needs[at].items[i]);
        bool there = false;
        for (int j = 0; j < counters.count; j++)
            there = there || counters.items[j] == counter;
        if (!there) push(g, &counters, counter);
    }
    /* The first is signalled last, so the others are joined while it is waited for. */
    while (counters.count > INSTRUCTION_WAITS && !g->failed) {
        int last = counters.count - 1;
        counters.items[last - 1] =
            join(g, node, lane, counters.items[last], counters.items[last - 1]);
        counters.count--;
    }
    for (int i = 0; i < counters.count && i < INSTRUCTION_WAITS; i++)
        waits[i] = counters.items[i];
    free(counters.items);
}

/* Puts the groups and joiners in their final order, and updates the counters' groups. */
static void order_groups(dag *g)
{
    draft *d = g->draft;
    int *place = calloc((size_t)d->n_groups, sizeof *place);
    if (!place) {
        g->failed = true;
        return;
    }
    for (int at = 0; at < d->n_groups && !g->failed; at++) {
        draft_group group = d->groups[at];
        choose_waits(g, at, group.node, group.waits);
        place[at] = g->n_ordered;
        emit(g, group, d->items + group.first, d->lanes + group.first);
    }
    int last_node = d->groups[d->n_groups - 1].node, finish[INSTRUCTION_WAITS] = {0};
    choose_waits(g, d->n_groups, last_node, finish);
    for (int i = 0; i < g->n_ordered; i++) {
        draft_group *group = &g->ordered[i];
        if (group->waits[0]) continue;
        memcpy(group->waits, finish, sizeof finish);
        group->previous = true;
    }
    /* Joiners have their counters already; `place` says where the other groups are now. */
    for (int first = 0; first < d->n_groups; first++) {
        int counter = g->counter_of[first];
        if (counter == 0) continue;
        draft_counter *of = &d->counters[counter];
        int last = of->first_group + of->n_groups - 1;
        for (int old = of->first_group; old <= last; old++)
            g->ordered[place[old]].signal = counter;
        *of = (draft_counter){place[first], place[last] - place[first] + 1};
    }
    free(place);
}

/* Writes the groups' waits and signals into their instructions. */
static bool number_counters(draft *d)
{
    schedule *s = d->out;
    s->n_counters = d->n_counters;
    s->per_pass = arena_alloc(&s->memory, (size_t)d->n_counters, sizeof *s->per_pass);
    if (!s->per_pass) return false;
    for (int i = 0; i < d->n_groups; i++)
        s->per_pass[d->groups[i].signal] += (uint32_t)d->groups[i].count;
    s->per_pass[0] = 0;
    for (int i = 0; i < d->n_groups; i++) {
        const draft_group *group = &d->groups[i];
        for (int j = group->first; j < group->first + group->count; j++) {
            instruction *in = &d->items[j];
            in->signal = (uint32_t)group->signal;
            for (int w = 0; w < INSTRUCTION_WAITS; w++) {
                in->waits[w].counter = (uint32_t)group->waits[w];
                in->waits[w].needed = s->per_pass[group->waits[w]];
                if (group->previous && group->waits[w])
                    in->flags |= (uint16_t)(INSTRUCTION_PREVIOUS_0 << w);
            }
        }
    }
    return true;
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
        gather_groups(&g);
        if (!g.failed) order_groups(&g);
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
    if (status == QP_OK && (g.failed || !d->counters || !number_counters(d)))
        status = error_no_memory(error, "the schedule's dependencies", 0);
    return status;
}
