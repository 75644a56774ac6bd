/* From dependencies between groups of instructions to counters, waits and signals.
 *
 * A counter is signalled by all instructions of a group, or of all groups of a node. An instruction
 * holds two waits; if a group needs more, noops join counters: each waits for two and signals a
 * third.
 */
#include "schedule/dag.h"

#include <stdlib.h>
#include <string.h>

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
        n_groups = dag_end_of_node(d, first) - first;
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
                        .flags = draft_sharing(d),
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
        if (!there) dag_push(g, &counters, counter);
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

void counters_make(dag *g)
{
    gather_groups(g);
    if (!g->failed) order_groups(g);
}

bool counters_number(draft *d)
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
