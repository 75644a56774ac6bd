/* Builds a program from the steps and nodes of a plan's page, and binds it to memory and batches.
 * See program.h. */
#include "model/adapter.h"
#include "plan/builder.h"
#include "plan/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct tables {
    const plan_builder *b;
    const model *model; /* NULL: weights have the shapes of the config and are F32 */
    program *out;
    int area_of[PLAN_MAX_TENSORS]; /* of caches that of layer 0; the other layers' follow it */
    int *last_view;                /* [areas]: the last view of each; 0: none */
    int *previous_view;            /* [views]: of the same area */
} tables;

/* ---- areas --------------------------------------------------------------------------------- */

static int add_area(program *p, program_area area)
{
    p->areas[p->n_areas] = area;
    return p->n_areas++;
}

static uint64_t row_bytes_of(const plan_tensor *t)
{
    int64_t rows = t->rank ? t->dims[0].size : 0;
    if (rows != -AXIS_TOKENS && rows != -AXIS_OUTPUTS && rows != -AXIS_WANTED &&
        rows != -AXIS_PAGES && rows != -AXIS_PREFILL_TOKENS)
        return 0;
    uint64_t bytes = dtype_block_bytes(t->type);
    for (int d = 1; d < t->rank; d++)
        bytes *= (uint64_t)t->dims[d].size;
    return bytes;
}

static program_base base_of(const plan_tensor *t, int id)
{
    static const program_base bases[] = {
        [PLAN_INPUT] = BASE_INPUT, [PLAN_ACTIVATION] = BASE_ARENA, [PLAN_OUTPUT] = BASE_ARENA,
        [PLAN_TABLE] = BASE_TABLE, [PLAN_STATE] = BASE_STATE,      [PLAN_CACHE] = BASE_K_CACHE,
        [PLAN_CARRIED] = BASE_SUMS};
    if (id == PLAN_V_CACHE) return BASE_V_CACHE;
    if (id == PLAN_SUMS_NEXT) return BASE_SUMS_NEXT;
    return bases[t->kind];
}

static void add_tensors(tables *t)
{
    program *p = t->out;
    for (int id = 0; id < p->n_tensors; id++) {
        const plan_tensor *tensor = &p->tensors[id];
        if (tensor->kind == PLAN_ABSENT) continue;
        int64_t layers = tensor->kind == PLAN_CACHE ? p->config.n_layers : 1;
        t->area_of[id] = p->n_areas;
        for (int64_t layer = 0; layer < layers; layer++)
            add_area(p, (program_area){.base = base_of(tensor, id),
                                       .index = id,
                                       .layer = layer,
                                       .offset = (uint64_t)layer * tensor->bytes,
                                       .bytes = tensor->bytes,
                                       .row_bytes = row_bytes_of(tensor),
                                       .name = tensor->name});
    }
}

void program_place(program *p)
{
    for (int a = 0; a < p->n_areas; a++) {
        program_area *area = &p->areas[a];
        if (area->base == BASE_ARENA) area->offset = p->tensors[area->index].offset;
    }
}

static const char *name_of(const program_weight *w)
{
#define WEIGHT(SLOT, per, role, rows, columns, gguf)                                               \
    [WEIGHT_##SLOT] = {gguf, gguf ".lora_a", gguf ".lora_b"},
    static const char *const names[WEIGHT_COUNT][3] = {
#include "model/weights.def"
    };
#undef WEIGHT
    return names[w->slot][w->lora];
}

static int find_weight(tables *t, program_weight weight, const tensor *of)
{
    program *p = t->out;
    const int part = weight.lora ? 1 + (int)weight.lora : weight.bias;
    int *found =
        &p->weight_areas[((weight.layer + 1) * WEIGHT_COUNT + weight.slot) * PROGRAM_WEIGHT_PARTS +
                         part];
    if (*found) return *found - 1;
    const int table = program_find_weight(p, WEIGHT_TOKEN_EMBD, -1, false);
    const bool tied = weight.slot == WEIGHT_OUTPUT && p->config.tied && table >= 0;
    weight.stored = tied ? table : p->n_weights;
    p->weights[p->n_weights] = weight;
    *found = 1 + add_area(p, (program_area){.base = BASE_WEIGHT,
                                            .index = p->n_weights++,
                                            .bytes = tensor_bytes(of),
                                            .first_node = p->n_nodes,
                                            .name = name_of(&weight)});
    return *found - 1;
}

/* ---- views --------------------------------------------------------------------------------- */

/* Strides of a contiguous tensor, as far as they are constant. */
static void lay_out(program_view *view)
{
    int64_t bytes = (int64_t)dtype_block_bytes(view->type);
    for (int d = view->rank - 1; d >= 0; d--) {
        view->stride[d] = bytes;
        bytes = view->shape[d] < 0 ? 0 : bytes * view->shape[d];
    }
}

/* Caches are stored page by page, and inside a page head by head, so that a head's positions lie
 * side by side (HND); the shape stays that of NHD. */
static void lay_out_cache(program_view *view)
{
    view->stride[2] = view->shape[1] * view->shape[3] * view->stride[3];
    view->stride[1] = view->shape[3] * view->stride[3];
}

/* Adds a dimension of `size` after the last, which becomes `outer`. */
static void split_last(program_view *view, int64_t outer, int64_t size, const char *symbol)
{
    int last = view->rank - 1;
    view->shape[last + 1] = size;
    view->stride[last + 1] = view->stride[last];
    view->symbols[last + 1] = symbol;
    view->shape[last] = outer;
    view->stride[last] *= size;
    view->rank++;
}

/* A cache of one page for each sequence as [1, n_slots, n_kv_heads, max_seq_len, head_dim]. */
static void view_slots(program_view *view)
{
    const program_view cache = *view;
    static const int from[] = {0, 2, 1, 3};
    view->rank = 5;
    view->shape[0] = 1;
    view->stride[0] = 0;
    view->symbols[0] = "1";
    for (int d = 0; d < 4; d++) {
        view->shape[d + 1] = cache.shape[from[d]];
        view->stride[d + 1] = cache.stride[from[d]];
        view->symbols[d + 1] = cache.symbols[from[d]];
    }
}

/* [n_tokens, top_k, features] as one of the top_k. */
static void view_choice(program_view *view, const plan_operand *operand)
{
    view->offset = (uint64_t)((operand->choice - 1) * view->stride[1]);
    view->shape[1] = view->shape[2];
    view->stride[1] = view->stride[2];
    view->symbols[1] = operand->symbols[0];
    view->rank = 2;
    view->shape[2] = view->stride[2] = 0;
    view->symbols[2] = NULL;
}

static void view_columns(program_view *view, const plan_operand *operand)
{
    int last = view->rank - 1;
    view->first_column = operand->first_column;
    view->columns = operand->columns;
    if (operand->columns) {
        view->offset = (uint64_t)(operand->first_column * view->stride[last]);
        view->shape[last] = operand->columns;
        view->symbols[last] = operand->symbols[0];
    }
    if (!operand->heads) return;
    split_last(view, operand->heads, view->shape[last] / operand->heads, operand->symbols[1]);
    if (!operand->one_part) return;
    int64_t size = view->shape[last + 1];
    split_last(view, 1, size, operand->symbols[1]);
    view->symbols[last + 1] = "1";
}

static program_view tensor_view(const tables *t, const plan_operand *operand, int64_t layer)
{
    const plan_tensor *of = &t->out->tensors[operand->id];
    program_view view = {.area = t->area_of[operand->id], .type = of->type, .rank = of->rank};
    int outer = operand->ranks ? 1 : 0;
    if (outer) {
        view.shape[0] = operand->ranks;
        view.symbols[0] = "ranks";
    }
    for (int d = 0; d < of->rank; d++) {
        view.shape[outer + d] = of->dims[d].size;
        view.symbols[outer + d] = of->dims[d].symbol;
    }
    view.rank += outer;
    lay_out(&view);
    if (of->kind == PLAN_CACHE) {
        lay_out_cache(&view);
        view.area += (int)layer;
    }
    if (operand->slots) view_slots(&view);
    if (operand->choice) view_choice(&view, operand);
    if (operand->rows) view.shape[0] = -(int64_t)operand->rows;
    if (operand->rows) view.symbols[0] = operand->rows_symbol;
    view_columns(&view, operand);
    return view;
}

/* A weight of these sizes. */
static tensor sized_tensor(const model_config *c, weight_slot slot, dtype type)
{
    int64_t rows, columns;
    weight_shape(c, slot, &rows, &columns);
    return weight_get_info(slot)->is_norm ? tensor_1d(NULL, type, columns)
                                          : tensor_2d(NULL, type, rows, columns);
}

/* A weight as the model stores it; without a model F32 by the config. Its rank is 0 if there is no
 * such bias. */
static tensor whole_tensor(const tables *t, const program_weight *w)
{
    const weight_slot slot = w->slot;
    const int64_t layer = w->layer;
    const bool bias = w->bias;
    if (w->lora && !t->model) return adapter_sizes(&t->out->whole, slot, w->lora == WEIGHT_LORA_B);
    if (w->lora) {
        const model_weight *adapted = model_get_weight(t->model, slot, layer);
        return w->lora == WEIGHT_LORA_A ? adapted->lora_a : adapted->lora_b;
    }
    if (!t->model) return bias ? (tensor){0} : sized_tensor(&t->out->whole, slot, DTYPE_F32);
    const model_weight *weight = model_get_weight(t->model, slot, layer);
    return bias ? weight->bias : weight->weight;
}

static size_t stored_bytes(dtype type, int64_t elements)
{
    return (size_t)(elements / (int64_t)dtype_block_elements(type)) * dtype_block_bytes(type);
}

tensor program_weight_part(const program_weight *w)
{
    const tensor *whole = &w->whole;
    const int64_t rows = w->rows.count * w->experts, columns = w->columns.count;
    const bool whole_rows = !program_weight_has_columns(w);
    if (whole->rank == 1 && !w->bias) return tensor_slice(*whole, 0, w->columns.first, columns);
    if (whole_rows && program_weight_has_rows(w)) return *whole;
    tensor part =
        w->bias ? tensor_1d(NULL, whole->type, rows) : tensor_2d(NULL, whole->type, rows, columns);
    if (whole->data && whole_rows && w->experts == 1)
        part.data = (char *)whole->data + stored_bytes(whole->type, w->rows.first * columns);
    return part;
}

static program_view weight_view(tables *t, const plan_operand *operand, int64_t layer)
{
    const weight_slot slot = (weight_slot)operand->id;
    program_weight weight = {.slot = slot,
                             .layer = weight_get_info(slot)->per_layer ? layer : -1,
                             .bias = operand->kind == OPERAND_BIAS,
                             .lora = operand->kind == OPERAND_LORA_A   ? WEIGHT_LORA_A
                                     : operand->kind == OPERAND_LORA_B ? WEIGHT_LORA_B
                                                                       : WEIGHT_OWN};
    weight.whole = whole_tensor(t, &weight);
    if (weight.whole.rank == 0) return (program_view){0};
    shard_cut_weight(t->out, &weight);
    tensor of = program_weight_part(&weight);
    if (weight.lora)
        of = tensor_split(of, 0, t->out->config.adapters.n);
    else if (weight_get_info(slot)->per_expert)
        of = tensor_split(of, 0, t->out->config.n_experts);
    program_view view = {.area = find_weight(t, weight, &of), .type = of.type, .rank = of.rank};
    memcpy(view.shape, of.shape, sizeof view.shape);
    memcpy(view.stride, of.stride, sizeof view.stride);
    return view;
}

static bool same_view(const program_view *a, const program_view *b)
{
    return a->area == b->area && a->offset == b->offset && a->type == b->type &&
           a->rank == b->rank && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

/* The number of a view, which is added if it is new. */
static int find_view(tables *t, const program_view *view)
{
    program *p = t->out;
    if (view->rank == 0) return 0;
    for (int i = t->last_view[view->area]; i > 0; i = t->previous_view[i]) {
        if (same_view(&p->views[i], view)) return i;
    }
    p->views[p->n_views] = *view;
    t->previous_view[p->n_views] = t->last_view[view->area];
    return t->last_view[view->area] = p->n_views++;
}

/* ---- nodes --------------------------------------------------------------------------------- */

/* Whether an axis counts rows of the batch. */
static bool counts_rows(program_axis axis)
{
    return axis == AXIS_TOKENS || axis == AXIS_OUTPUTS || axis == AXIS_WANTED ||
           axis == AXIS_SEQUENCES || axis == AXIS_PREFILL_TOKENS || axis == AXIS_DECODE_TOKENS;
}

/* Rows that a node's instructions may share: those of the first operand that it writes by rows, or
 * where there is none (a cache is written by slots) of the first that has rows. */
static program_axis row_axis_of(const program *p, const program_node *node)
{
    const op_info *op = op_get(node->op);
    program_axis read = AXES;
    for (int i = 0; i < op_n_tensors(op); i++) {
        const program_view *view = &p->views[node->operands[i]];
        if (view->rank == 0) continue;
        if (view->shape[0] >= 0 || !counts_rows((program_axis)-view->shape[0])) continue;
        program_axis axis = (program_axis)-view->shape[0];
        if (op->tensors[i].direction != OP_IN) return axis;
        if (read == AXES) read = axis;
    }
    assert(read != AXES); /* an operator of the forward pass has rows */
    return read;
}

/* False if there are more views than a node's operands can number. */
static bool add_node(tables *t, int step, const plan_node *from)
{
    program *p = t->out;
    program_node *node = &p->nodes[p->n_nodes];
    *node = (program_node){
        .op = from->op, .name = p->steps[step].name, .step = step, .layer = from->layer};
    for (int i = 0; i < op_n_tensors(op_get(from->op)); i++) {
        const plan_operand *operand = &from->operands[i];
        if (operand->kind == OPERAND_NONE) continue;
        program_view view = operand->kind == OPERAND_TENSOR ? tensor_view(t, operand, from->layer)
                                                            : weight_view(t, operand, from->layer);
        int number = find_view(t, &view);
        if (number > UINT16_MAX) return false;
        node->operands[i] = (uint16_t)number;
    }
    for (int i = 0; i < OP_MAX_PARAMS; i++)
        node->params[i] = (float)from->params[i];
    node->row_axis = row_axis_of(p, node);
    p->n_nodes++;
    return true;
}

static bool allocate(tables *t)
{
    program *p = t->out;
    size_t nodes = (size_t)t->b->n_nodes, layers = (size_t)p->config.n_layers;
    size_t views = nodes * OP_MAX_TENSORS + 1,
           weights = WEIGHT_COUNT * PROGRAM_WEIGHT_PARTS * (layers + 1);
    size_t areas = weights + (size_t)p->n_tensors + 2 * layers;
    p->nodes = arena_alloc(&p->memory, nodes, sizeof *p->nodes);
    p->views = arena_alloc(&p->memory, views, sizeof *p->views);
    p->weights = arena_alloc(&p->memory, weights, sizeof *p->weights);
    p->areas = arena_alloc(&p->memory, areas, sizeof *p->areas);
    p->weight_areas = arena_alloc(&p->memory, weights, sizeof *p->weight_areas);
    t->last_view = calloc(areas, sizeof *t->last_view);
    t->previous_view = calloc(views, sizeof *t->previous_view);
    return p->nodes && p->views && p->weights && p->areas && p->weight_areas && t->last_view &&
           t->previous_view;
}

static qp_status add_nodes(tables *t, qp_error *error)
{
    const program *p = t->out;
    for (int step = 0; step < p->n_steps; step++) {
        for (int n = 0; n < p->steps[step].n_nodes; n++) {
            if (!add_node(t, step, &t->b->nodes[p->steps[step].first_node + n]))
                return error_set(error, QP_UNSUPPORTED,
                                 "a plan has room for %d views of tensors, its first %d of %d "
                                 "operators need more",
                                 UINT16_MAX, p->n_nodes, t->b->n_nodes);
        }
    }
    return QP_OK;
}

qp_status program_build(const plan_builder *b, const model *model, program *p, qp_error *error)
{
    tables t = {.b = b, .model = model, .out = p};
    qp_status status;
    if (!allocate(&t)) {
        status = error_no_memory(error, "the plan", (size_t)b->n_nodes * sizeof *p->nodes);
    } else {
        p->n_views = 1; /* view 0 is absent */
        add_tensors(&t);
        status = add_nodes(&t, error);
    }
    free(t.last_view);
    free(t.previous_view);
    return status;
}

/* ---- binding ------------------------------------------------------------------------------- */

static char *address_of(const program_area *area, const program_memory *memory)
{
    if (area->base == BASE_WEIGHT)
        return memory->weights ? (char *)(uintptr_t)memory->weights[area->index] : NULL;
    char *data = memory->data[area->index];
    return data && area->layer ? data + (size_t)area->layer * memory->cache_layer_bytes : data;
}

tensor program_bind_view(const program *p, int number, const program_memory *memory,
                         const int64_t *sizes)
{
    const program_view *view = &p->views[number];
    if (view->rank == 0) return (tensor){0};
    char *data = memory ? address_of(&p->areas[view->area], memory) : NULL;
    tensor out = {
        .data = data ? data + view->offset : NULL, .type = view->type, .rank = view->rank};
    for (int d = view->rank - 1; d >= 0; d--) {
        out.shape[d] = view->shape[d] < 0 ? sizes[-view->shape[d]] : view->shape[d];
        out.stride[d] = view->stride[d] ? view->stride[d] : out.shape[d + 1] * out.stride[d + 1];
    }
    return out;
}

void program_bind(const program *p, int node, const program_memory *memory, const int64_t *sizes,
                  op_call *call)
{
    const program_node *about = &p->nodes[node];
    const op_info *op = op_get(about->op);
    *call = (op_call){0};
    for (int i = 0, n = op_n_tensors(op); i < n; i++)
        call->tensors[i] = program_bind_view(p, about->operands[i], memory, sizes);
    for (int i = 0, n = op_n_params(op); i < n; i++)
        call->params[i] = (double)about->params[i];
    call->end = op->units(call);
}

size_t program_tensor_bytes(const program *p, plan_tensor_id id, const program_sizes *sizes)
{
    const plan_tensor *t = &p->tensors[id];
    size_t bytes = dtype_block_bytes(t->type);
    for (int d = 0; d < t->rank; d++)
        bytes *= (size_t)(t->dims[d].size < 0 ? sizes->of[-t->dims[d].size] : t->dims[d].size);
    return bytes;
}
