/* Operators in parts: see parts.h. */
#include "vm/parts_run.h"

#include "base/checked.h"
#include "base/clock.h"
#include "op/add/add.h"
#include "op/embedding/embedding.h"
#include "op/head_norm/head_norm.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/rope/rope.h"
#include "op/row.h"
#include "op/silu_and_mul/silu_and_mul.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Finds the largest sizes that any node needs for its parts. */
static void find_sizes(parts *p)
{
    const program *program = p->program;
    p->n_rows = larger(program->capacity.of[AXIS_TOKENS], program->capacity.of[AXIS_WANTED]);
    for (int n = 0; n < program->n_nodes; n++) {
        op_call call;
        program_bind(program, n, NULL, program->capacity.of, &call);
        if (program->nodes[n].op == OP_PAGED_PREFILL) {
            const tensor *cache = &call.tensors[PAGED_PREFILL_K_CACHE];
            p->n_positions = larger(p->n_positions, cache->shape[0] * cache->shape[1]);
            p->n_heads = larger(p->n_heads, call.tensors[PAGED_PREFILL_Q].shape[1]);
            p->head_dim = larger(p->head_dim, cache->shape[3]);
        }
        if (program->nodes[n].op == OP_LINEAR && call.tensors[LINEAR_RESIDUAL].rank > 0)
            p->n_features = larger(p->n_features, call.tensors[LINEAR_OUT].shape[1]);
    }
}

static qp_status take_memory(parts *p, qp_error *error)
{
    const size_t rows = (size_t)p->n_rows, dim = (size_t)p->head_dim;
    const size_t cache = (size_t)p->n_positions * dim;
    size_t scores, product, heads, total;
    bool fits =
        checked_mul(rows, (size_t)p->n_positions, &scores) &&
        checked_mul(rows, (size_t)p->n_features, &product) &&
        checked_mul(rows * dim, (size_t)p->n_heads, &heads) &&
        checked_mul(4 * cache + scores + product + heads + rows + dim, sizeof(float), &total);
    if (!fits) return error_set(error, QP_NO_MEMORY, "attention in parts is too large to address");
    if (total == 0) return QP_OK;
    TRY(buffer_alloc(&p->memory, total, "attention in parts", error));
    memset(p->memory.data, 0, total); /* so that no page fault falls into a measured time */
    p->keys = p->memory.data;
    p->values = p->keys + cache;
    p->repeated = p->values + cache;
    p->scores = p->repeated + 2 * cache;
    p->product = p->scores + scores;
    p->heads = p->product + product;
    p->largest = p->heads + heads;
    p->row = p->largest + rows;
    return QP_OK;
}

qp_status parts_create(const program *program, uint32_t cpu_features, parts **out, qp_error *error)
{
    *out = NULL;
    parts *p = calloc(1, sizeof *p);
    if (!p) return error_no_memory(error, "attention in parts", sizeof *p);
    p->program = program;
    p->cpu_features = cpu_features;
    find_sizes(p);
    qp_status status = take_memory(p, error);
    if (status == QP_OK)
        *out = p;
    else
        parts_destroy(p);
    return status;
}

void parts_destroy(parts *p)
{
    if (!p) return;
    free(p->list);
    buffer_free(&p->memory);
    free(p);
}

/* ---- The list of parts --------------------------------------------------------------------- */

void parts_begin(parts *p)
{
    p->begin = clock_ns();
}

void parts_end(parts *p)
{
    p->end = clock_ns();
}

static timeline_part *next_part(parts *p)
{
    if (p->count == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 4096;
        timeline_part *list = realloc(p->list, capacity * sizeof *list);
        if (!list) return NULL;
        p->list = list;
        p->capacity = capacity;
    }
    return &p->list[p->count++];
}

void parts_add(parts *p, const char *kind, op_cost cost, const part_shape *shape)
{
    timeline_part *part = next_part(p);
    p->lost |= !part;
    if (!part) return;
    *part = (timeline_part){.node = p->node,
                            .track = p->track,
                            .chunk = p->chunk,
                            .chunks = p->chunks,
                            .kind = kind,
                            .type = shape->type,
                            .elements = shape->elements,
                            .wait = p->wait ? p->wait : p->begin,
                            .begin = p->begin,
                            .end = p->end,
                            .flops = cost.flops,
                            .bytes = cost.bytes,
                            .weights = shape->weights,
                            .cached = shape->cached};
    memcpy(part->inputs, shape->inputs, sizeof part->inputs);
    memcpy(part->outputs, shape->outputs, sizeof part->outputs);
    p->wait = 0;
}

qp_status parts_hand_over(parts *p, parts_sink *sink, void *context, qp_error *error)
{
    const size_t count = p->count;
    p->count = 0;
    if (p->lost) return error_no_memory(error, "the trace", 2 * count * sizeof *p->list);
    for (size_t i = 0; i < count; i++)
        sink(context, &p->list[i]);
    return QP_OK;
}

void parts_print_shape(const tensor *view, char *text, size_t size)
{
    text[0] = '\0';
    for (int d = 0, used = 0; d < view->rank && used + 24 < (int)size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? "x" : "",
                         (long long)view->shape[d]);
}

/* ---- Products ------------------------------------------------------------------------------ */

static op_cost cost_of_slice(const op_info *op, const op_call *call)
{
    op_cost cost = op_cost_of(op, call);
    double share = (double)(call->end - call->begin) / (double)op->units(call);
    return (op_cost){cost.flops * share, cost.bytes * share};
}

/* residual + product, of the features [first, first + columns). */
static void add_residual(parts *p, const op_call *call, const tensor *product, int64_t first,
                         int64_t columns)
{
    op_call add = {
        .tensors = {[ADD_A] = tensor_slice(call->tensors[LINEAR_RESIDUAL], 1, first, columns),
                    [ADD_B] = tensor_slice(*product, 1, first, columns),
                    [ADD_OUT] = tensor_slice(call->tensors[LINEAR_OUT], 1, first, columns)}};
    const op_info *op = op_get(OP_ADD);
    add.end = op->units(&add);
    op_kernel *kernel = op_select(op, p->cpu_features, &add, NULL);
    parts_begin(p);
    kernel(&add);
    parts_end(p);
    part_shape shape = {.type = add.tensors[ADD_OUT].type, .elements = add.end};
    parts_print_shape(&add.tensors[ADD_OUT], shape.outputs, sizeof shape.outputs);
    snprintf(shape.inputs, sizeof shape.inputs, "%.30s, %.30s", shape.outputs, shape.outputs);
    parts_add(p, "Add", op_cost_of(op, &add), &shape);
}

static void run_linear(parts *p, const op_call *call, op_kernel *kernel)
{
    const tensor *x = &call->tensors[LINEAR_X], *out = &call->tensors[LINEAR_OUT];
    const int64_t rows = x->shape[0], columns = call->end - call->begin;
    op_call product = *call;
    const bool adds = call->tensors[LINEAR_RESIDUAL].rank > 0;
    if (adds) {
        product.tensors[LINEAR_RESIDUAL] = (tensor){0};
        product.tensors[LINEAR_OUT] = tensor_2d(p->product, DTYPE_F32, rows, out->shape[1]);
    }
    parts_begin(p);
    kernel(&product);
    parts_end(p);
    part_shape shape = {.type = call->tensors[LINEAR_WEIGHT].type, .elements = rows * columns};
    snprintf(shape.inputs, sizeof shape.inputs, "%lldx%lld, %lldx%lld", (long long)rows,
             (long long)x->shape[1], (long long)columns, (long long)x->shape[1]);
    snprintf(shape.outputs, sizeof shape.outputs, "%lldx%lld", (long long)rows, (long long)columns);
    const tensor weight = tensor_slice(call->tensors[LINEAR_WEIGHT], 0, call->begin, columns);
    shape.weights = (double)tensor_bytes(&weight);
    parts_add(p, "Linear", cost_of_slice(op_get(OP_LINEAR), &product), &shape);
    if (adds) add_residual(p, call, &product.tensors[LINEAR_OUT], call->begin, columns);
}

/* ---- The activation ------------------------------------------------------------------------ */

/* Elements of out (n_tokens, intermediate_size): the units [begin, end), and of each row the
 * features [low, high). */
typedef struct elements {
    const tensor *x, *out; /* x: gate, then up */
    int64_t begin, end, low, high, count;
} elements;

/* out = silu(gate), or out *= up */
static void activate(elements *e, bool multiply)
{
    const int64_t di = e->out->shape[1];
    e->count = 0;
    for (int64_t unit = e->begin; unit < e->end;) {
        const row_span span = row_span_at(unit, e->end, di);
        const int64_t first = larger(span.first, e->low);
        const int64_t last = span.first + span.count < e->high ? span.first + span.count : e->high;
        const float *in = (const float *)tensor_row(e->x, span.row) + (multiply ? di : 0);
        float *to = tensor_row(e->out, span.row);
        for (int64_t i = first; i < last; i++)
            to[i] = multiply ? to[i] * in[i] : in[i] / (1 + expf(-in[i]));
        if (last > first) e->count += last - first;
        unit += span.count;
    }
}

static void run_activation_part(parts *p, elements *e, bool multiply)
{
    parts_begin(p);
    activate(e, multiply);
    parts_end(p);
    if (e->count == 0) return;
    const double n = (double)e->count;
    const long long columns = e->high - e->low < e->count ? e->high - e->low : e->count;
    part_shape shape = {.type = DTYPE_F32, .elements = e->count};
    snprintf(shape.outputs, sizeof shape.outputs, "%lldx%lld", (long long)e->count / columns,
             columns);
    snprintf(shape.inputs, sizeof shape.inputs, multiply ? "%.30s, %.30s" : "%.30s", shape.outputs,
             shape.outputs);
    const op_cost silu = {4 * n, 2 * n * sizeof(float)}, mul = {n, 3 * n * sizeof(float)};
    parts_add(p, multiply ? "Mul" : "SiLU", multiply ? mul : silu, &shape);
}

/* Features [low, high) of the slice. */
static void run_activation(parts *p, const op_call *call, int64_t low, int64_t high)
{
    elements e = {.x = &call->tensors[SILU_AND_MUL_X],
                  .out = &call->tensors[SILU_AND_MUL_OUT],
                  .begin = call->begin,
                  .end = call->end,
                  .low = low,
                  .high = high};
    run_activation_part(p, &e, false);
    run_activation_part(p, &e, true);
}

/* ---- The rest ------------------------------------------------------------------------------ */

/* The kind of an operator that runs as one part. */
static const char *kind_of(const parts *p)
{
    const program_node *node = &p->program->nodes[p->node];
    switch (node->op) {
    case OP_EMBEDDING:
        return program_weight_of(p->program, p->node, EMBEDDING_TABLE) ? "Embedding" : "MemCopy";
    case OP_RMS_NORM:
    case OP_HEAD_NORM:
        return "RMSNorm";
    case OP_ROPE:
        return "RoPE";
    case OP_KV_APPEND:
    case OP_UNPAD:
        return "MemCopy";
    case OP_CONCAT_PAST_KV:
        return "Concat";
    case OP_REPEAT_KV:
        return "RepeatKV";
    case OP_CAUSAL_MASK:
        return "Mask";
    case OP_ATTENTION_SCORES:
    case OP_ATTENTION_VALUES:
        return "MatMul";
    case OP_ADD:
        return "Add";
    case OP_SAMPLING:
        return "Sample";
    default:
        return op_get(node->op)->name;
    }
}

/* Appends the shape of operand t to a list. */
static void list_shape(const op_call *call, int t, char *text, size_t size)
{
    const size_t used = strlen(text);
    char shape[32];
    parts_print_shape(&call->tensors[t], shape, sizeof shape);
    if (tensor_elements(&call->tensors[t]) > 0)
        snprintf(text + used, size - used, "%s%s", used ? ", " : "", shape);
}

/* Lists the tensors that the call writes as outputs, except a cache, of which a pass changes
 * little. */
static void describe(const parts *p, const op_call *call, part_shape *shape)
{
    const op_info *op = op_get(p->program->nodes[p->node].op);
    *shape = (part_shape){.type = DTYPE_F32};
    for (int t = 0; t < op_n_tensors(op); t++) {
        const tensor *view = &call->tensors[t];
        const op_direction direction = op->tensors[t].direction;
        if (view->rank == 0) continue;
        const bool weight = program_weight_of(p->program, p->node, t) != NULL;
        const int id = program_tensor_of(p->program, p->node, t);
        const bool cache = (id == PLAN_K_CACHE || id == PLAN_V_CACHE) && op_writes(direction);
        if (weight || cache) shape->type = view->type;
        if (cache) continue;
        if (op_reads(direction)) list_shape(call, t, shape->inputs, sizeof shape->inputs);
        if (!op_writes(direction)) continue;
        list_shape(call, t, shape->outputs, sizeof shape->outputs);
        shape->elements += tensor_elements(view);
    }
    if (op != op_get(OP_KV_APPEND)) return;
    list_shape(call, KV_APPEND_K, shape->outputs, sizeof shape->outputs);
    list_shape(call, KV_APPEND_V, shape->outputs, sizeof shape->outputs);
    shape->elements = 2 * tensor_elements(&call->tensors[KV_APPEND_K]);
}

static void run_whole(parts *p, const op_call *call, op_kernel *kernel)
{
    const op_info *op = op_get(p->program->nodes[p->node].op);
    const int64_t units = op->units(call);
    parts_begin(p);
    kernel(call);
    parts_end(p);
    part_shape shape;
    describe(p, call, &shape);
    shape.elements = units ? shape.elements * (call->end - call->begin) / units : 0;
    parts_add(p, kind_of(p), cost_of_slice(op, call), &shape);
}

/* ---- Chunks -------------------------------------------------------------------------------- */

/* The features or heads [begin, end) of chunk i of n, out of `count`. */
static void cut(const parts *p, int64_t count, int64_t *begin, int64_t *end)
{
    *begin = count * p->chunk / p->chunks;
    *end = count * (p->chunk + 1) / p->chunks;
}

/* The heads of a chunk, of every tensor that has heads: its dimension `dim`. */
static void cut_heads(const parts *p, op_call *call, int t, int dim)
{
    int64_t begin, end;
    cut(p, call->tensors[t].shape[dim], &begin, &end);
    call->tensors[t] = tensor_slice(call->tensors[t], dim, begin, end - begin);
}

static void run_rope_chunk(parts *p, const op_call *call, op_kernel *kernel)
{
    op_call chunk = *call;
    cut_heads(p, &chunk, ROPE_Q, 1);
    cut_heads(p, &chunk, ROPE_K, 1);
    if (chunk.tensors[ROPE_Q].shape[1] > 0) run_whole(p, &chunk, kernel);
}

static void run_head_norm_chunk(parts *p, const op_call *call, op_kernel *kernel)
{
    op_call chunk = *call;
    cut_heads(p, &chunk, HEAD_NORM_Q, 1);
    cut_heads(p, &chunk, HEAD_NORM_K, 1);
    if (chunk.tensors[HEAD_NORM_Q].shape[1] > 0) run_whole(p, &chunk, kernel);
}

static void run_append_chunk(parts *p, const op_call *call, op_kernel *kernel)
{
    op_call chunk = *call;
    cut_heads(p, &chunk, KV_APPEND_K, 1);
    cut_heads(p, &chunk, KV_APPEND_V, 1);
    cut_heads(p, &chunk, KV_APPEND_K_CACHE, 2);
    cut_heads(p, &chunk, KV_APPEND_V_CACHE, 2);
    if (chunk.tensors[KV_APPEND_K].shape[1] > 0) run_whole(p, &chunk, kernel);
}

/* Heads that share keys and values stay together where there are enough groups. */
static void run_attention_chunk(parts *p, const op_call *call)
{
    const int64_t heads = call->tensors[PAGED_PREFILL_Q].shape[1];
    const int64_t groups = call->tensors[PAGED_PREFILL_K_CACHE].shape[2];
    const bool together = groups >= p->chunks;
    int64_t begin, end;
    cut(p, together ? groups : heads, &begin, &end);
    const int64_t each = together ? heads / groups : 1;
    if (begin < end) parts_run_attention(p, call, begin * each, end * each);
}

static void run_linear_chunk(parts *p, const op_call *call, op_kernel *kernel)
{
    op_call chunk = *call;
    cut(p, call->end, &chunk.begin, &chunk.end);
    if (chunk.begin < chunk.end) run_linear(p, &chunk, kernel);
}

static void run_activation_chunk(parts *p, const op_call *call)
{
    int64_t low, high;
    cut(p, call->tensors[SILU_AND_MUL_OUT].shape[1], &low, &high);
    if (low < high) run_activation(p, call, low, high);
}

/* The parts of attention leave no log-sum-exp. */
static bool leaves_sums(const op_call *call)
{
    return call->tensors[PAGED_PREFILL_LSE].rank > 0;
}

/* False: the operator is not cut. */
static bool run_chunk(parts *p, const op_call *call, op_kernel *kernel)
{
    switch (p->program->nodes[p->node].op) {
    case OP_LINEAR:
        run_linear_chunk(p, call, kernel);
        return true;
    case OP_PAGED_PREFILL:
        if (leaves_sums(call)) return false;
        run_attention_chunk(p, call);
        return true;
    case OP_SILU_AND_MUL:
        run_activation_chunk(p, call);
        return true;
    case OP_ROPE:
        run_rope_chunk(p, call, kernel);
        return true;
    case OP_HEAD_NORM:
        run_head_norm_chunk(p, call, kernel);
        return true;
    case OP_KV_APPEND:
        run_append_chunk(p, call, kernel);
        return true;
    default:
        return false;
    }
}

void parts_run_node(parts *p, int node, const op_call *call, op_kernel *kernel, int n_tracks)
{
    p->node = node;
    p->chunks = n_tracks;
    p->wait = 0;
    for (int i = 0; i < n_tracks; i++) {
        p->track = p->chunk = i;
        if (run_chunk(p, call, kernel)) continue;
        p->chunks = 1;
        run_whole(p, call, kernel);
        return;
    }
}

void parts_run_slice(parts *p, int node, const op_call *call, op_kernel *kernel, int track,
                     uint64_t wait)
{
    p->node = node;
    p->track = track;
    p->chunk = p->chunks = 0;
    p->wait = wait;
    switch (p->program->nodes[node].op) {
    case OP_LINEAR:
        run_linear(p, call, kernel);
        break;
    case OP_PAGED_PREFILL:
        if (leaves_sums(call))
            run_whole(p, call, kernel);
        else
            parts_run_attention(p, call, 0, call->tensors[PAGED_PREFILL_Q].shape[1]);
        break;
    case OP_SILU_AND_MUL:
        run_activation(p, call, 0, call->tensors[SILU_AND_MUL_OUT].shape[1]);
        break;
    default:
        run_whole(p, call, kernel);
    }
}
