/* The part of the proof that is about memory: every access is compared with the earlier ones that
 * it overlaps.
 *
 * The nodes are taken in the program's order; a sound schedule computes what this order would. For
 * each area of memory there is a list of the instructions that touched it, in bundles: those of one
 * node that touch the same rows. Usually one comparison of clocks shows that a whole bundle comes
 * before an instruction; if not, its instructions are compared one by one.
 */
#include "schedule/verifier.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum touch_kind { TOUCH_READ, TOUCH_ADD, TOUCH_WRITE } touch_kind;

/* What an instruction does to an area: the rows and the bytes of a row that it touches. */
typedef struct touch {
    int32_t index;
    int area;
    touch_kind kind;
    int64_t row, end_row;
    uint64_t column, end_column;
    uint64_t period, end_part; /* of a part that repeats: [column, end_part), and again after each
                                * period; 0: all of [column, end_column) */
    struct touch *next;        /* of its bundle */
} touch;

typedef struct bundle {
    touch hull; /* of all touches; its index is that of the last one */
    int operand;
    touch *touches;
    int32_t *clock;          /* of its instructions */
    const int32_t *known_to; /* the last clock that includes it */
    struct bundle *next;     /* of its area, or of the current node */
} bundle;

typedef struct memory_map {
    verifier *v;
    bundle **of;     /* [areas]: since they were last overwritten */
    int **sharing;   /* [areas]: the areas that share bytes with it, itself too; -1 ends */
    uint64_t *valid; /* [areas][2]: bytes of a row that hold the area's own value */
    bool *cleared;   /* [areas]: overwritten as a whole, for the next pass */
    bundle *now;     /* of the current node */
} memory_map;

static qp_status no_memory(const verifier *v)
{
    return error_no_memory(v->error, "the proof of the schedule", 0);
}

static bool is_written(const program_area *area)
{
    return program_changes(area->base);
}

static bool counts_rows(const program_area *area, const program_view *view)
{
    return area->row_bytes > 0 && view->shape[0] < 0;
}

static uint64_t row_elements(const program_view *view)
{
    uint64_t elements = 1;
    for (int d = 1; d < view->rank; d++)
        elements *= (uint64_t)view->shape[d];
    return elements;
}

static touch_kind kind_of(op_direction direction)
{
    if (direction == OP_IN) return TOUCH_READ;
    return direction == OP_ACCUMULATE ? TOUCH_ADD : TOUCH_WRITE;
}

static touch touch_of(const verifier *v, int32_t index, int i, const op_call *whole)
{
    const schedule *s = v->s;
    const instruction *in = verifier_at(v, index);
    const op_info *op = op_get((op_code)in->opcode);
    const program_view *view = &s->program->views[in->operands[i]];
    const program_area *area = &s->program->areas[view->area];
    touch t = {.index = index,
               .area = view->area,
               .kind = kind_of(op->tensors[i].direction),
               .end_row = INT64_MAX,
               .end_column = area->row_bytes ? area->row_bytes : area->bytes};
    if (!counts_rows(area, view)) return t;
    if (view->shape[0] == -(int64_t)s->program->nodes[in->node].row_axis) {
        t.row = in->tokens.begin;
        if (in->tokens.end != INSTRUCTION_ALL_TOKENS) t.end_row = in->tokens.end;
    }
    uint64_t element = dtype_block_bytes(view->type);
    op_columns part = {0, (int64_t)row_elements(view)};
    if (op->columns) part = op->columns(whole, i, in->units.begin, in->units.end);
    t.column = view->offset + (uint64_t)part.begin * element;
    t.end_column = view->offset + (uint64_t)part.end * element;
    t.period = op->period ? (uint64_t)op->period(whole, i) * element : 0;
    if (t.period) t.end_part = t.end_column - row_elements(view) * element + t.period;
    return t;
}

/* Whether two touches share bytes of a row. */
static bool share_columns(const touch *a, const touch *b)
{
    if (a->period && a->period == b->period)
        return a->column < b->end_part && b->column < a->end_part;
    return a->column < b->end_column && b->column < a->end_column;
}

/* The range of bytes that is touched, from the base. */
static void span_of(const verifier *v, const touch *t, uint64_t span[2])
{
    const program_area *area = &v->s->program->areas[t->area];
    span[0] = area->offset;
    span[1] = area->offset + area->bytes;
    if (area->row_bytes == 0 || t->end_row == INT64_MAX) return;
    uint64_t end = area->offset + (uint64_t)t->end_row * area->row_bytes;
    span[0] = area->offset + (uint64_t)t->row * area->row_bytes;
    if (end < span[1]) span[1] = end;
}

/* Whether two touches need an order. Two reads do not, nor do two additions: sums are integers. */
static bool conflict(const verifier *v, const touch *a, const touch *b)
{
    if (a->kind == b->kind && a->kind != TOUCH_WRITE) return false;
    if (a->area == b->area)
        return a->row < b->end_row && b->row < a->end_row && share_columns(a, b);
    uint64_t x[2], y[2];
    span_of(v, a, x);
    span_of(v, b, y);
    return x[0] < y[1] && y[0] < x[1];
}

static bool knows_all(const verifier *v, const int32_t *clock, bundle *before)
{
    if (before->known_to == clock) return true;
    if (!verifier_covers(v, clock, before->clock)) return false;
    before->known_to = clock;
    return true;
}

static qp_status refuse_order(const verifier *v, const touch *t, const touch *before)
{
    static const char *const verbs[] = {
        [TOUCH_READ] = "reads", [TOUCH_ADD] = "adds to", [TOUCH_WRITE] = "writes"};
    char what[200];
    snprintf(what, sizeof what,
             "it %s \"%s\" without waiting for worker %d, instruction %d, which %s it",
             verbs[t->kind], v->s->program->areas[t->area].name,
             (int)(before->index / v->s->longest), (int)(before->index % v->s->longest),
             verbs[before->kind]);
    return verifier_refuse(v, t->index, what);
}

/* Everything that conflicts with `t` must come before it. */
static qp_status check_order(const memory_map *m, const touch *t, bundle *before)
{
    const verifier *v = m->v;
    for (; before; before = before->next) {
        if (!conflict(v, &before->hull, t) || knows_all(v, v->knows[t->index], before)) continue;
        for (const touch *one = before->touches; one; one = one->next) {
            if (conflict(v, one, t) && !verifier_is_before(v, one->index, t->index))
                return refuse_order(v, t, one);
        }
    }
    return QP_OK;
}

/* A read must find the area's own value of this pass; caches also hold values of earlier passes. An
 * addition must find a value, which sums have from the previous pass. */
static qp_status check_value(const memory_map *m, const touch *t)
{
    const uint64_t *valid = m->valid + 2 * t->area;
    program_base base = m->v->s->program->areas[t->area].base;
    if (base == BASE_SUMS_NEXT)
        return verifier_refuse(m->v, t->index, "it reads the next pass's sums");
    if (base == BASE_SUMS ? t->kind == TOUCH_ADD : base != BASE_ARENA) return QP_OK;
    if (t->column >= valid[0] && t->end_column <= valid[1]) return QP_OK;
    return verifier_refuse(m->v, t->index,
                           "it reads bytes that no instruction of this pass has written");
}

/* The current node's bundle for an operand and rows, new if there is none yet. */
static bundle *find_bundle(memory_map *m, const touch *t, int operand)
{
    for (bundle *b = m->now; b; b = b->next) {
        if (b->operand == operand && b->hull.row == t->row && b->hull.end_row == t->end_row)
            return b;
    }
    bundle *b = arena_alloc(&m->v->memory, 1, sizeof *b);
    int32_t *clock = arena_alloc(&m->v->memory, m->v->clock_words, sizeof *clock);
    if (!b || !clock) return NULL;
    *b = (bundle){.hull = *t, .operand = operand, .clock = clock, .next = m->now};
    return m->now = b;
}

static qp_status remember(memory_map *m, const touch *t, int operand)
{
    bundle *b = find_bundle(m, t, operand);
    touch *copy = b ? arena_alloc(&m->v->memory, 1, sizeof *copy) : NULL;
    if (!copy) return no_memory(m->v);
    *copy = *t;
    copy->next = b->touches;
    b->touches = copy;
    if (t->column < b->hull.column) b->hull.column = t->column;
    if (t->end_column > b->hull.end_column) b->hull.end_column = t->end_column;
    if (t->end_part > b->hull.end_part) b->hull.end_part = t->end_part;
    verifier_add(m->v, t->index, b->clock);
    return QP_OK;
}

static qp_status check_instruction(memory_map *m, int32_t index, const op_call *whole)
{
    const schedule *s = m->v->s;
    const instruction *in = verifier_at(m->v, index);
    const op_info *op = op_get((op_code)in->opcode);
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        if (in->operands[i] == 0 ||
            !is_written(&s->program->areas[s->program->views[in->operands[i]].area]))
            continue;
        touch t = touch_of(m->v, index, i, whole);
        for (const int *other = m->sharing[t.area]; *other >= 0; other++)
            TRY(check_order(m, &t, m->of[*other]));
        if (op_reads(op->tensors[i].direction)) TRY(check_value(m, &t));
        TRY(remember(m, &t, i));
    }
    return QP_OK;
}

/* Whether a view covers its area. */
static bool is_whole(const schedule *s, const program_view *view)
{
    uint64_t bytes = dtype_block_bytes(view->type);
    for (int d = 0; d < view->rank; d++)
        bytes *= view->shape[d] < 0 ? (uint64_t)s->program->capacity.of[-view->shape[d]]
                                    : (uint64_t)view->shape[d];
    return view->offset == 0 && bytes == s->program->areas[view->area].bytes;
}

/* Removes bundles inside the bytes [begin, end) of a row: later accesses must come after the node
 * that has just written there, and that one came after these bundles. */
static void forget(bundle **list, uint64_t begin, uint64_t end)
{
    while (*list) {
        const touch *hull = &(*list)->hull;
        if (hull->column >= begin && hull->end_column <= end)
            *list = (*list)->next;
        else
            list = &(*list)->next;
    }
}

/* After a node its whole view holds its value, and areas that share the bytes have lost theirs. A
 * node that adds does not replace earlier additions, so their bundles stay. */
static void write_over(memory_map *m, const program_node *node, int i)
{
    const schedule *s = m->v->s;
    const program_view *view = &s->program->views[node->operands[i]];
    const program_area *area = &s->program->areas[view->area];
    bool adds = op_get(node->op)->tensors[i].direction == OP_ACCUMULATE;
    if (area->base == BASE_SUMS_NEXT && !adds && is_whole(s, view)) m->cleared[view->area] = true;
    if (area->base != BASE_ARENA && area->base != BASE_SUMS) return;
    for (const int *other = m->sharing[view->area]; *other >= 0; other++) {
        if (*other != view->area) m->valid[2 * *other] = m->valid[2 * *other + 1] = 0;
    }
    if (!counts_rows(area, view) || view->shape[0] != -(int64_t)node->row_axis) return;
    uint64_t begin = view->offset;
    uint64_t end = begin + row_elements(view) * dtype_block_bytes(view->type);
    if (!adds) forget(&m->of[view->area], begin, end);
    uint64_t *valid = m->valid + 2 * view->area;
    bool apart = valid[0] == valid[1] || begin > valid[1] || end < valid[0];
    if (apart || begin < valid[0]) valid[0] = begin;
    if (apart || end > valid[1]) valid[1] = end;
}

static qp_status check_node(memory_map *m, int node)
{
    verifier *v = m->v;
    const program_node *about = &v->s->program->nodes[node];
    op_call whole;
    program_bind(v->s->program, node, NULL, v->s->program->capacity.of, &whole);
    for (int i = v->node_first[node]; i < v->node_first[node + 1]; i++)
        TRY(check_instruction(m, v->by_node[i], &whole));
    const op_info *op = op_get(about->op);
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        if (about->operands[i] && op_writes(op->tensors[i].direction)) write_over(m, about, i);
    }
    while (m->now) {
        bundle *b = m->now;
        m->now = b->next;
        b->next = m->of[b->hull.area];
        m->of[b->hull.area] = b;
    }
    return QP_OK;
}

static bool shares_bytes(const program_area *a, const program_area *b)
{
    return a->base == b->base && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static qp_status find_sharing(memory_map *m)
{
    const schedule *s = m->v->s;
    int *found = calloc((size_t)s->program->n_areas + 1, sizeof *found);
    if (!found) return no_memory(m->v);
    for (int a = 0; a < s->program->n_areas; a++) {
        size_t n = 0;
        for (int b = 0; is_written(&s->program->areas[a]) && b < s->program->n_areas; b++) {
            if (a == b || shares_bytes(&s->program->areas[a], &s->program->areas[b]))
                found[n++] = b;
        }
        m->sharing[a] = arena_alloc(&m->v->memory, n + 1, sizeof *found);
        if (!m->sharing[a]) break;
        for (size_t i = 0; i < n; i++)
            m->sharing[a][i] = found[i];
        m->sharing[a][n] = -1;
    }
    free(found);
    return m->sharing[s->program->n_areas - 1] ? QP_OK : no_memory(m->v);
}

/* The next pass must find its sums cleared. */
static qp_status check_cleared(const memory_map *m)
{
    const schedule *s = m->v->s;
    for (int a = 0; a < s->program->n_areas; a++) {
        if (s->program->areas[a].base == BASE_SUMS_NEXT && !m->cleared[a])
            return error_set(m->v->error, QP_INVALID,
                             "schedule: no instruction clears \"%s\" for the next pass",
                             s->program->areas[a].name);
    }
    return QP_OK;
}

qp_status verifier_check_memory(verifier *v)
{
    const size_t areas = (size_t)v->s->program->n_areas;
    memory_map m = {.v = v,
                    .of = arena_alloc(&v->memory, areas, sizeof *m.of),
                    .sharing = arena_alloc(&v->memory, areas, sizeof *m.sharing),
                    .valid = arena_alloc(&v->memory, 2 * areas, sizeof *m.valid),
                    .cleared = arena_alloc(&v->memory, areas, sizeof *m.cleared)};
    if (!m.of || !m.sharing || !m.valid || !m.cleared) return no_memory(v);
    TRY(find_sharing(&m));
    for (int node = 0; node < v->s->n_nodes; node++)
        if (!program_is_noop(v->s->program, node)) TRY(check_node(&m, node));
    return check_cleared(&m);
}
