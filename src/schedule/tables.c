/* The tables that instructions refer to, from a plan and a model's weights. */
#include "base/hash.h"
#include "schedule/draft.h"

#include <assert.h>
#include <string.h>

_Static_assert((int)INSTRUCTION_OPERANDS >= (int)OP_MAX_TENSORS, "a record holds all operands");

typedef struct tables {
    const plan *plan;
    const model *model;
    schedule *out;
    int area_of[PLAN_TENSOR_COUNT]; /* of tensors with one area; caches have one a layer */
} tables;

static int add_area(schedule *s, schedule_area area)
{
    s->areas[s->n_areas] = area;
    return s->n_areas++;
}

static uint64_t row_bytes_of(const plan_tensor *t)
{
    int64_t rows = t->rank ? t->dims[0].size : 0;
    if (rows != -AXIS_TOKENS && rows != -AXIS_OUTPUTS && rows != -AXIS_PAGES) return 0;
    uint64_t bytes = dtype_block_bytes(t->type);
    for (int d = 1; d < t->rank; d++)
        bytes *= (uint64_t)t->dims[d].size;
    return bytes;
}

static void add_tensor(tables *t, int id)
{
    static const schedule_base bases[] = {
        [PLAN_INPUT] = SCHEDULE_INPUT,  [PLAN_ACTIVATION] = SCHEDULE_ARENA,
        [PLAN_OUTPUT] = SCHEDULE_ARENA, [PLAN_TABLE] = SCHEDULE_TABLE,
        [PLAN_STATE] = SCHEDULE_STATE,  [PLAN_CARRIED] = SCHEDULE_SUMS};
    const plan_tensor *tensor = &t->plan->tensors[id];
    schedule_area area = {.base = bases[tensor->kind],
                          .index = id,
                          .bytes = tensor->bytes,
                          .row_bytes = row_bytes_of(tensor),
                          .name = tensor->name};
    if (area.base == SCHEDULE_ARENA || area.base == SCHEDULE_TABLE) area.index = 0;
    if (area.base == SCHEDULE_ARENA) area.offset = tensor->offset;
    if (id == PLAN_SUMS_NEXT) area.base = SCHEDULE_SUMS_NEXT;
    t->area_of[id] = add_area(t->out, area);
}

static void add_cache(tables *t, int id)
{
    const plan_tensor *tensor = &t->plan->tensors[id];
    t->area_of[id] = t->out->n_areas;
    for (int64_t layer = 0; layer < t->plan->config.n_layers; layer++)
        add_area(t->out,
                 (schedule_area){.base = id == PLAN_K_CACHE ? SCHEDULE_K_CACHE : SCHEDULE_V_CACHE,
                                 .index = (int)layer,
                                 .offset = (uint64_t)layer * tensor->bytes,
                                 .bytes = tensor->bytes,
                                 .row_bytes = row_bytes_of(tensor),
                                 .name = tensor->name});
}

static bool same_view(const schedule_view *a, const schedule_view *b)
{
    return a->area == b->area && a->offset == b->offset && a->type == b->type &&
           a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

/* The number of a view, which is added unless it is there. */
static uint16_t find_view(schedule *s, const schedule_view *view)
{
    for (int i = s->n_views - 1; i > 0; i--) {
        if (same_view(&s->views[i], view)) return (uint16_t)i;
    }
    s->views[s->n_views] = *view;
    return (uint16_t)s->n_views++;
}

static uint16_t view_tensor(tables *t, const plan_node *node, const plan_operand *operand)
{
    plan_view of = plan_view_operand(t->plan, operand);
    schedule_view view = {
        .area = t->area_of[operand->id], .offset = of.offset, .type = of.type, .rank = of.rank};
    if (t->plan->tensors[operand->id].kind == PLAN_CACHE) view.area += (int)node->layer;
    memcpy(view.shape, of.shape, sizeof view.shape);
    memcpy(view.stride, of.stride, sizeof view.stride);
    return find_view(t->out, &view);
}

static int find_weight(schedule *s, schedule_weight weight, const tensor *view)
{
    for (int i = 0; i < s->n_areas; i++) {
        if (s->areas[i].base != SCHEDULE_WEIGHT) continue;
        const schedule_weight *other = &s->weights[s->areas[i].index];
        if (other->slot == weight.slot && other->layer == weight.layer &&
            other->bias == weight.bias)
            return i;
    }
    s->weights[s->n_weights] = weight;
    return add_area(s, (schedule_area){.base = SCHEDULE_WEIGHT,
                                       .index = s->n_weights++,
                                       .bytes = tensor_bytes(view),
                                       .name = weight_get_info((weight_slot)weight.slot)->name});
}

static uint16_t view_weight(tables *t, const plan_node *node, const plan_operand *operand)
{
    const weight_slot slot = (weight_slot)operand->id;
    const bool bias = operand->kind == OPERAND_BIAS;
    const model_weight *weight = model_get_weight(t->model, slot, node->layer);
    const tensor *of = bias ? &weight->bias : &weight->weight;
    if (of->rank == 0) return 0;
    schedule_weight key = {
        .slot = slot, .layer = weight_get_info(slot)->per_layer ? node->layer : -1, .bias = bias};
    schedule_view view = {.area = find_weight(t->out, key, of), .type = of->type, .rank = of->rank};
    memcpy(view.shape, of->shape, sizeof view.shape);
    memcpy(view.stride, of->stride, sizeof view.stride);
    return find_view(t->out, &view);
}

/* Rows that a node's instructions may share: those of the first operand that it writes by rows, or
 * where there is none (a cache is written by slots) of the first that has rows. */
static program_axis row_axis_of(const schedule *s, const schedule_node *node)
{
    const op_info *op = op_get(node->op);
    program_axis read = AXES;
    for (int i = 0; i < op_n_tensors(op); i++) {
        const schedule_view *view = &s->views[node->operands[i]];
        if (view->rank == 0) continue;
        if (view->shape[0] != -AXIS_TOKENS && view->shape[0] != -AXIS_OUTPUTS) continue;
        program_axis axis = (program_axis)-view->shape[0];
        if (op->tensors[i].direction != OP_IN) return axis;
        if (read == AXES) read = axis;
    }
    assert(read != AXES); /* an operator of the forward pass has rows */
    return read;
}

static void add_node(tables *t, int step, const plan_node *node)
{
    schedule *s = t->out;
    schedule_node *out = &s->nodes[s->n_nodes++];
    *out = (schedule_node){
        .op = node->op, .name = t->plan->steps[step].name, .step = step, .layer = node->layer};
    for (int i = 0; i < OP_MAX_TENSORS; i++) {
        const plan_operand *operand = &node->operands[i];
        if (operand->kind == OPERAND_NONE) continue;
        out->operands[i] = operand->kind == OPERAND_TENSOR ? view_tensor(t, node, operand)
                                                           : view_weight(t, node, operand);
    }
    assert(op_n_params(op_get(node->op)) <= INSTRUCTION_PARAMS);
    for (int i = 0; i < INSTRUCTION_PARAMS; i++)
        out->params[i] = (float)node->params[i];
    out->row_axis = row_axis_of(s, out);
}

static qp_status allocate(schedule *s, const plan *p, qp_error *error)
{
    size_t nodes = (size_t)p->n_nodes, layers = (size_t)p->config.n_layers;
    size_t weights = WEIGHT_COUNT * 2 * (layers + 1);
    s->nodes = arena_alloc(&s->memory, nodes, sizeof *s->nodes);
    s->views = arena_alloc(&s->memory, nodes * OP_MAX_TENSORS + 1, sizeof *s->views);
    s->weights = arena_alloc(&s->memory, weights, sizeof *s->weights);
    s->areas = arena_alloc(&s->memory, weights + PLAN_TENSOR_COUNT + 2 * layers, sizeof *s->areas);
    if (s->nodes && s->views && s->weights && s->areas) return QP_OK;
    return error_no_memory(error, "the schedule", nodes * OP_MAX_TENSORS * sizeof *s->views);
}

/* The sum over ranks is nothing to do for one. */
static bool is_void(const plan *p, const plan_node *node)
{
    return node->op == OP_ALL_REDUCE && p->options.ranks == 1;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return hash_mix(hash ^ value);
}

static uint64_t mix_view(uint64_t hash, const schedule_view *view)
{
    hash = mix(hash, (uint64_t)view->area);
    hash = mix(hash, view->offset);
    hash = mix(hash, (uint64_t)view->type);
    hash = mix(hash, (uint64_t)view->rank);
    for (int d = 0; d < TENSOR_MAX_RANK; d++)
        hash = mix(mix(hash, (uint64_t)view->shape[d]), (uint64_t)view->stride[d]);
    return hash;
}

static uint64_t mix_node(uint64_t hash, const schedule_node *node)
{
    for (const char *name = op_get(node->op)->name; *name; name++)
        hash = mix(hash, (uint64_t)*name);
    hash = mix(hash, (uint64_t)node->op);
    hash = mix(hash, (uint64_t)node->step);
    hash = mix(hash, (uint64_t)node->layer);
    hash = mix(hash, (uint64_t)node->row_axis);
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        hash = mix(hash, node->operands[i]);
    for (int i = 0; i < INSTRUCTION_PARAMS; i++) {
        uint32_t bits;
        memcpy(&bits, &node->params[i], sizeof bits);
        hash = mix(hash, bits);
    }
    return hash;
}

uint64_t tables_fingerprint(const schedule *s)
{
    uint64_t hash = mix(INSTRUCTION_WORDS, OP_COUNT);
    for (int i = 0; i < s->n_areas; i++) {
        const schedule_area *area = &s->areas[i];
        hash = mix(mix(hash, (uint64_t)area->base), (uint64_t)area->index);
        hash = mix(mix(mix(hash, area->offset), area->bytes), area->row_bytes);
    }
    for (int i = 0; i < s->n_weights; i++) {
        const schedule_weight *weight = &s->weights[i];
        hash = mix(mix(hash, (uint64_t)weight->slot), (uint64_t)weight->layer);
        hash = mix(hash, (uint64_t)weight->bias);
    }
    for (int i = 0; i < s->n_views; i++)
        hash = mix_view(hash, &s->views[i]);
    for (int i = 0; i < s->n_nodes; i++)
        hash = mix_node(hash, &s->nodes[i]);
    for (int axis = 0; axis < AXES; axis++)
        hash = mix(hash, (uint64_t)s->capacity[axis]);
    return hash;
}

static qp_status check_limits(const plan *p, qp_error *error)
{
    if (p->options.ranks != 1)
        return error_set(error, QP_UNSUPPORTED,
                         "a schedule is made for a model on one rank, found %d ranks",
                         p->options.ranks);
    if ((size_t)p->n_nodes * OP_MAX_TENSORS > UINT16_MAX || p->config.n_layers > INT16_MAX)
        return error_set(error, QP_UNSUPPORTED,
                         "a schedule has room for about 5,000 operators, the plan has %d",
                         p->n_nodes);
    return QP_OK;
}

qp_status tables_build(const plan *p, const model *model, schedule *s, qp_error *error)
{
    TRY(check_limits(p, error));
    TRY(allocate(s, p, error));
    tables t = {.plan = p, .model = model, .out = s};
    s->n_views = 1; /* view 0 is absent */
    memcpy(s->capacity, p->capacity.of, sizeof s->capacity);
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        if (p->tensors[id].kind == PLAN_CACHE)
            add_cache(&t, id);
        else if (p->tensors[id].kind != PLAN_ABSENT)
            add_tensor(&t, id);
    }
    int last = s->options.last_step > 0 ? s->options.last_step : p->n_steps;
    for (int step = 0; step < p->n_steps && step < last; step++) {
        for (int n = 0; n < p->steps[step].n_nodes; n++) {
            const plan_node *node = &p->nodes[p->steps[step].first_node + n];
            if (!is_void(p, node)) add_node(&t, step, node);
        }
    }
    if (s->n_nodes == 0)
        return error_set(error, QP_INVALID, "steps 0 to %d of the plan have no operators", last);
    s->fingerprint = tables_fingerprint(s);
    return QP_OK;
}
