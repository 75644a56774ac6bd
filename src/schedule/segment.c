/* Where nodes are cut, so that other nodes can wait for a part of them: by KV head, from the norm
 * through attention.
 *
 * This file does not use the notion of a head. A node whose units are parts of every row says which
 * bytes of a row each unit touches. If some units of a consumer read only what some units of a
 * producer write, and no other unit of the consumer reads it, both nodes are cut into segments
 * there, in the same order. No instruction crosses a border between segments, and dag.c computes
 * dependencies by segment. Only nodes that wait for each other directly are cut: other waits would
 * not end earlier.
 */
#include "schedule/draft.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS_MOST = 1024 };

/* Bytes of a row of an area that a unit touches; rows of a cache are its pages. */
typedef struct reach {
    int area;
    uint64_t begin, end;
} reach;

/* An operand whose bytes matter: where it lies, and the bytes of its elements. */
typedef struct touched {
    int operand, area;
    uint64_t offset, element;
} touched;

/* Consecutive units that touch the same bytes, from `first` to the next run's `first`. */
typedef struct unit_run {
    int64_t first;
    reach reaches[OP_MAX_TENSORS]; /* one of each operand of the list; begin == end: nothing */
    int component;
} unit_run;

typedef struct run_list {
    touched operands[OP_MAX_TENSORS]; /* [n_operands] */
    int n_operands;
    unit_run runs[RUNS_MOST];
    int count; /* 0: more than fit, or the node is not cut */
} run_list;

typedef struct segmenter {
    draft *d;
    int *writer;      /* [areas]: the last node to write there; -1: none */
    uint64_t *before; /* [nodes][words]: the nodes that come before, directly or not */
    size_t words;
    run_list produced, consumed;
} segmenter;

static bool is_before(const segmenter *g, int earlier, int later)
{
    return g->before[(size_t)later * g->words + (size_t)earlier / 64] >> (earlier % 64) & 1;
}

/* Whether a node waits for the data that it accesses: one that adds to sums does not read them. */
static bool waits_to_read(op_direction direction)
{
    return op_reads(direction) && direction != OP_ACCUMULATE;
}

/* The operands of areas that `producer` wrote last and the node reads; with producer -1 those that
 * it writes. */
static void find_operands(const segmenter *g, const program_node *node, int producer, run_list *out)
{
    const schedule *s = g->d->out;
    const op_info *op = op_get(node->op);
    out->n_operands = 0;
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_view *view = &s->program->views[node->operands[i]];
        if (node->operands[i] == 0 || !program_changes(s->program->areas[view->area].base))
            continue;
        op_direction direction = op->tensors[i].direction;
        if (producer < 0 ? !op_writes(direction) : !waits_to_read(direction)) continue;
        if (producer >= 0 && g->writer[view->area] != producer) continue;
        out->operands[out->n_operands++] =
            (touched){i, view->area, view->offset, dtype_block_bytes(view->type)};
    }
}

static void find_reaches(const run_list *list, const op_info *op, const op_call *whole,
                         int64_t unit, reach *reaches)
{
    for (int i = 0; i < list->n_operands; i++) {
        const touched *t = &list->operands[i];
        op_columns part = op->columns(whole, t->operand, unit, unit + 1);
        reaches[i] = (reach){.area = t->area,
                             .begin = t->offset + (uint64_t)part.begin * t->element,
                             .end = t->offset + (uint64_t)part.end * t->element};
    }
}

static bool touch_alike(const run_list *list, const reach *a, const reach *b)
{
    for (int i = 0; i < list->n_operands; i++)
        if (a[i].begin != b[i].begin || a[i].end != b[i].end) return false;
    return true;
}

/* The runs of a node's units by find_reaches(); none if it goes row by row. */
static void find_runs(const segmenter *g, int node, int producer, run_list *out)
{
    const schedule *s = g->d->out;
    const program_node *about = &s->program->nodes[node];
    const op_info *op = op_get(about->op);
    op_call whole;
    out->count = 0;
    if (!op->columns) return;
    program_bind(s->program, node, NULL, s->program->capacity.of, &whole);
    find_operands(g, about, producer, out);
    for (int64_t unit = 0; unit < whole.end; unit++) {
        reach reaches[OP_MAX_TENSORS];
        find_reaches(out, op, &whole, unit, reaches);
        if (out->count && touch_alike(out, out->runs[out->count - 1].reaches, reaches)) continue;
        if (out->count == RUNS_MOST) {
            out->count = 0;
            return;
        }
        unit_run *run = &out->runs[out->count++];
        run->first = unit;
        memcpy(run->reaches, reaches, (size_t)out->n_operands * sizeof *reaches);
    }
}

static bool meet(const run_list *list_a, const unit_run *a, const run_list *list_b,
                 const unit_run *b)
{
    for (int i = 0; i < list_a->n_operands; i++) {
        const reach *x = &a->reaches[i];
        if (x->begin == x->end) continue;
        for (int j = 0; j < list_b->n_operands; j++) {
            const reach *y = &b->reaches[j];
            if (x->area == y->area && x->begin < y->end && y->begin < x->end) return true;
        }
    }
    return false;
}

static void rename_component(run_list *list, int from, int to)
{
    for (int i = 0; i < list->count; i++) {
        if (list->runs[i].component == from) list->runs[i].component = to;
    }
}

/* Gives runs of both lists that depend on each other, directly or not, the same component. */
static void find_components(run_list *produced, run_list *consumed)
{
    for (int i = 0; i < produced->count; i++)
        produced->runs[i].component = i;
    for (int j = 0; j < consumed->count; j++) {
        unit_run *reader = &consumed->runs[j];
        reader->component = produced->count + j;
        for (int i = 0; i < produced->count; i++) {
            int other = produced->runs[i].component;
            if (other == reader->component || !meet(produced, &produced->runs[i], consumed, reader))
                continue;
            rename_component(consumed, other, reader->component);
            rename_component(produced, other, reader->component);
        }
    }
}

/* The first run from `from` on that has (or has not) a component of the runs [0, end) of `list`. */
static int find_run(const run_list *in, int from, const run_list *list, int end, bool has)
{
    for (; from < in->count; from++) {
        bool found = false;
        for (int i = 0; i < end && !found; i++)
            found = list->runs[i].component == in->runs[from].component;
        if (found == has) return from;
    }
    return from;
}

/* Whether nothing on one side of the producer's run `at` depends on the other; *border gets where
 * the consumer is cut then. */
static bool is_border(const run_list *produced, const run_list *consumed, int at, int *border)
{
    if (find_run(produced, at, produced, at, true) < produced->count) return false;
    *border = find_run(consumed, 0, produced, at, false);
    return *border > 0 && *border < consumed->count &&
           find_run(consumed, *border, produced, at, true) == consumed->count;
}

static bool add_border(draft *d, int node, int64_t unit)
{
    segment_list *list = &d->segments[node];
    int at = list->count;
    while (at > 0 && list->borders[at - 1] > unit)
        at--;
    if (at > 0 && list->borders[at - 1] == unit) return true;
    int64_t *borders = draft_grow(list->borders, &list->capacity, list->count, sizeof *borders);
    if (!borders) return false;
    list->borders = borders;
    memmove(borders + at + 1, borders + at, (size_t)(list->count - at) * sizeof *borders);
    borders[at] = unit;
    list->count++;
    return true;
}

/* Cuts two nodes where nothing depends across the cut, into at most as many segments as there are
 * workers. */
static bool cut_pair(segmenter *g, int producer, int consumer)
{
    int workers = g->d->out->options.workers, n = 0, border;
    int at[RUNS_MOST], to[RUNS_MOST];
    find_runs(g, consumer, producer, &g->consumed);
    if (g->consumed.count < 2) return true;
    find_runs(g, producer, -1, &g->produced);
    if (g->produced.count < 2) return true;
    find_components(&g->produced, &g->consumed);
    for (int i = 1; i < g->produced.count; i++) {
        if (!is_border(&g->produced, &g->consumed, i, &border)) continue;
        at[n] = i;
        to[n++] = border;
    }
    int segments = n + 1 < workers ? n + 1 : workers;
    for (int i = 1; i < segments; i++) {
        int chosen = (int)((int64_t)i * (n + 1) / segments) - 1;
        if (!add_border(g->d, producer, g->produced.runs[at[chosen]].first) ||
            !add_border(g->d, consumer, g->consumed.runs[to[chosen]].first))
            return false;
    }
    return true;
}

/* Whether no other producer of `node` waits for `producer` already. */
static bool is_direct(const segmenter *g, int producer, const int *producers, int n)
{
    for (int i = 0; i < n; i++) {
        if (producers[i] != producer && is_before(g, producer, producers[i])) return false;
    }
    return true;
}

/* The nodes that last wrote what a node reads. */
static int find_producers(const segmenter *g, const program_node *node,
                          int producers[OP_MAX_TENSORS])
{
    int n = 0;
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        int writer =
            node->operands[i] ? g->writer[g->d->out->program->views[node->operands[i]].area] : -1;
        bool there = writer < 0 || !waits_to_read(op_get(node->op)->tensors[i].direction);
        for (int j = 0; j < n; j++)
            there = there || producers[j] == writer;
        if (!there) producers[n++] = writer;
    }
    return n;
}

static bool cut_node(segmenter *g, int node)
{
    const schedule *s = g->d->out;
    const program_node *about = &s->program->nodes[node];
    int producers[OP_MAX_TENSORS], n = find_producers(g, about, producers);
    uint64_t *mine = g->before + (size_t)node * g->words;
    for (int i = 0; i < n; i++) {
        if (is_direct(g, producers[i], producers, n) && !cut_pair(g, producers[i], node))
            return false;
    }
    for (int i = 0; i < n; i++) {
        const uint64_t *theirs = g->before + (size_t)producers[i] * g->words;
        for (size_t w = 0; w < g->words; w++)
            mine[w] |= theirs[w];
        mine[producers[i] / 64] |= (uint64_t)1 << (producers[i] % 64);
    }
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const program_area *area = &s->program->areas[s->program->views[about->operands[i]].area];
        if (about->operands[i] && op_writes(op_get(about->op)->tensors[i].direction) &&
            program_changes(area->base))
            g->writer[s->program->views[about->operands[i]].area] = node;
    }
    return true;
}

qp_status segment_nodes(draft *d, qp_error *error)
{
    size_t nodes = (size_t)d->out->n_nodes, areas = (size_t)d->out->program->n_areas;
    segmenter *g = calloc(1, sizeof *g);
    d->segments = calloc(nodes, sizeof *d->segments);
    bool enough = g && d->segments;
    if (enough) {
        *g = (segmenter){.d = d, .words = (nodes + 63) / 64};
        g->writer = malloc(areas * sizeof *g->writer);
        g->before = calloc(nodes * g->words, sizeof *g->before);
        enough = g->writer && g->before;
    }
    for (size_t a = 0; enough && a < areas; a++)
        g->writer[a] = -1;
    for (int node = 0; enough && node < d->out->n_nodes; node++)
        enough = program_is_noop(d->out->program, node) || cut_node(g, node);
    if (g) {
        free(g->writer);
        free(g->before);
    }
    free(g);
    return enough ? QP_OK : error_no_memory(error, "the schedule's segments", nodes);
}
