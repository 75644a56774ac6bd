/* The forward pass as data: building, binding, counting bytes. See plan.h. */
#include "plan/plan.h"

#include "base/checked.h"
#include "plan/builder.h"
#include "plan/lifetime.h"

#include <stdlib.h>
#include <string.h>

plan_options plan_default_options(const model_config *config)
{
    return (plan_options){.max_tokens = 512,
                          .max_sequences = 1,
                          .max_outputs = 1,
                          .candidates = config->vocab_size < 64 ? config->vocab_size : 64,
                          .context = config->context_length,
                          .page_size = 16,
                          .kv_type = DTYPE_F16,
                          .ranks = 1,
                          .kv_partitions = 1};
}

static qp_status check_range(const char *name, int64_t value, int64_t most, qp_error *error)
{
    if (value >= 1 && value <= most) return QP_OK;
    return error_set(error, QP_INVALID, "%s must be 1 to %lld, found %lld", name, (long long)most,
                     (long long)value);
}

static qp_status check_options(const plan_options *o, qp_error *error)
{
    TRY(check_range("tokens in a batch", o->max_tokens, 1 << 20, error));
    TRY(check_range("sequences", o->max_sequences, 1 << 16, error));
    TRY(check_range("rows of logits", o->max_outputs, 1 << 20, error));
    TRY(check_range("candidates", o->candidates, 1 << 20, error));
    TRY(check_range("the context", o->context, 1 << 26, error));
    TRY(check_range("the page size", o->page_size, 1 << 16, error));
    TRY(check_range("ranks", o->ranks, 1 << 10, error));
    TRY(check_range("parts of the KV cache", o->kv_partitions, 1 << 10, error));
    if (o->rank < 0 || o->rank >= o->ranks)
        return error_set(error, QP_INVALID, "rank must be 0 to %d, found %d", o->ranks - 1,
                         o->rank);
    if (o->kv_type != DTYPE_F32 && o->kv_type != DTYPE_F16 && o->kv_type != DTYPE_BF16)
        return error_set(error, QP_INVALID, "the KV cache must be F32, F16 or BF16, found %s",
                         dtype_name(o->kv_type));
    return QP_OK;
}

/* Up to its window, attention that slides looks at every position. */
static qp_status check_window(const model_config *c, const plan_options *o, qp_error *error)
{
    if (c->window == 0 || o->context <= c->window) return QP_OK;
    return error_set(
        error, QP_UNSUPPORTED,
        "a context of %lld: this model's attention slides over the latest %lld positions, "
        "which quipu does not compute; choose a context of at most %lld",
        (long long)o->context, (long long)c->window, (long long)c->window);
}

/* QKV and gate/up are split by output rows, the output and down projections by input columns. */
static qp_status share_of_rank(model_config *c, const plan_options *o, qp_error *error)
{
    if (c->n_heads % o->ranks || c->n_kv_heads % o->ranks || c->intermediate_size % o->ranks)
        return error_set(error, QP_INVALID,
                         "%d ranks must divide %lld heads, %lld KV heads and an intermediate size "
                         "of %lld",
                         o->ranks, (long long)c->n_heads, (long long)c->n_kv_heads,
                         (long long)c->intermediate_size);
    c->n_heads /= o->ranks;
    c->n_kv_heads /= o->ranks;
    c->intermediate_size /= o->ranks;
    return QP_OK;
}

static void count_capacity(plan *p)
{
    plan_options *o = &p->options;
    int64_t pages_each = (o->context + o->page_size - 1) / o->page_size;
    if (o->n_pages == 0) o->n_pages = pages_each * o->max_sequences;
    int64_t *of = p->capacity.of;
    of[AXIS_TOKENS] = o->max_tokens;
    of[AXIS_SEQUENCES] = o->max_sequences;
    of[AXIS_SEQUENCE_ENDS] = o->max_sequences + 1;
    of[AXIS_PAGE_REFS] = o->n_pages;
    of[AXIS_OUTPUTS] = o->max_outputs;
    of[AXIS_PAGES] = o->n_pages;
    /* Dynamic scaling gives every token's angles their own row, by the length of its sequence. */
    of[AXIS_POSITIONS] = p->config.rope.scaling == ROPE_DYNAMIC ? o->max_tokens : o->context;
}

static int64_t dim_size(plan_dim dim, const plan_sizes *sizes)
{
    return dim.size < 0 ? sizes->of[-dim.size] : dim.size;
}

static qp_status count_tensor_bytes(plan *p, qp_error *error)
{
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        plan_tensor *t = &p->tensors[id];
        if (t->kind == PLAN_ABSENT) continue;
        size_t bytes = dtype_block_bytes(t->type);
        for (int d = 0; d < t->rank; d++) {
            if (!checked_mul(bytes, (size_t)dim_size(t->dims[d], &p->capacity), &bytes))
                return error_set(error, QP_NO_MEMORY, "tensor \"%s\" is too large to address",
                                 t->name);
        }
        t->bytes = bytes;
    }
    return QP_OK;
}

bool plan_can_fuse(const model_config *config)
{
    return !family_has(config->family, WEIGHT_ATTN_Q_NORM);
}

qp_status plan_build(const model_config *config, const plan_options *options, plan *out,
                     qp_error *error)
{
    *out = (plan){.config = *config, .options = *options};
    if (out->options.kv_partitions == 0) out->options.kv_partitions = 1;
    TRY(check_options(&out->options, error));
    TRY(check_window(config, &out->options, error));
    TRY(share_of_rank(&out->config, options, error));
    if (options->sums) out->options.fuse = true;
    if (options->sums && options->ranks > 1)
        return error_set(error, QP_UNSUPPORTED,
                         "a plan of sums is for a model on one rank, found %d ranks",
                         options->ranks);
    if (out->options.fuse && config->head_dim % 2 != 0)
        return error_set(error, QP_UNSUPPORTED,
                         "a fused plan needs heads of an even size, found %lld; leave fuse out",
                         (long long)config->head_dim);
    if (out->options.fuse && !plan_can_fuse(config))
        return error_set(
            error, QP_UNSUPPORTED,
            "a fused plan has no norms of q and k, which %s models have; choose a plan "
            "that is not fused",
            config->family->name);
    count_capacity(out);
    plan_builder builder = {.plan = out};
    llama_forward(&builder);
    if (builder.failed)
        return error_no_memory(error, "the plan", (size_t)out->n_nodes * sizeof *out->nodes);
    TRY(count_tensor_bytes(out, error));
    plan_cell *cells;
    TRY(lifetime_compute(out, &cells, error));
    lifetime_place(out, cells);
    free(cells);
    return plan_verify(out, error);
}

void plan_free(plan *p)
{
    free(p->steps);
    free(p->nodes);
    *p = (plan){0};
}

int plan_find_step(const plan *p, const char *name, int64_t layer)
{
    for (int i = 0; i < p->n_steps; i++) {
        if (p->steps[i].layer == layer && strcmp(p->steps[i].name, name) == 0) return i;
    }
    return -1;
}

plan_access plan_step_access(const plan *p, int step, plan_tensor_id id)
{
    plan_access access = {0};
    const plan_step *s = &p->steps[step];
    for (int n = s->first_node; n < s->first_node + s->n_nodes; n++) {
        const op_info *op = op_get(p->nodes[n].op);
        bool written = access.write; /* what this step wrote itself it need not find there */
        for (int i = 0; i < op_n_tensors(op); i++) {
            const plan_operand *operand = &p->nodes[n].operands[i];
            if (operand->kind != OPERAND_TENSOR || operand->id != (int)id) continue;
            if (op->tensors[i].direction != OP_OUT && !(written && !access.read))
                access.read = true;
            if (op->tensors[i].direction != OP_IN) access.write = true;
        }
    }
    return access;
}

/* Strides of a contiguous tensor, as far as they are constant. */
static void lay_out(plan_view *view)
{
    int64_t bytes = (int64_t)dtype_block_bytes(view->type);
    for (int d = view->rank - 1; d >= 0; d--) {
        view->stride[d] = bytes;
        bytes = view->shape[d] < 0 ? 0 : bytes * view->shape[d];
    }
}

/* Caches are stored page by page, and inside a page head by head, so that a head's positions lie
 * side by side (HND); the shape stays that of NHD. */
static void lay_out_cache(plan_view *view)
{
    view->stride[2] = view->shape[1] * view->shape[3] * view->stride[3];
    view->stride[1] = view->shape[3] * view->stride[3];
}

static void view_columns(plan_view *view, const plan_operand *operand)
{
    int last = view->rank - 1;
    if (operand->columns) {
        view->offset = (size_t)(operand->first_column * view->stride[last]);
        view->shape[last] = operand->columns;
    }
    if (!operand->heads) return;
    view->shape[last + 1] = view->shape[last] / operand->heads;
    view->stride[last + 1] = view->stride[last];
    view->shape[last] = operand->heads;
    view->stride[last] *= view->shape[last + 1];
    view->rank++;
    if (!operand->one_part) return;
    view->shape[last + 2] = view->shape[last + 1];
    view->stride[last + 2] = view->stride[last + 1];
    view->shape[last + 1] = 1;
    view->stride[last + 1] = view->stride[last];
    view->rank++;
}

plan_view plan_view_operand(const plan *p, const plan_operand *operand)
{
    const plan_tensor *t = &p->tensors[operand->id];
    plan_view view = {.type = t->type, .rank = t->rank};
    int outer = operand->ranks ? 1 : 0;
    if (outer) view.shape[0] = operand->ranks;
    for (int d = 0; d < t->rank; d++)
        view.shape[outer + d] = t->dims[d].size;
    view.rank += outer;
    if (operand->flat) {
        view.rank--;
        view.shape[view.rank - 1] *= view.shape[view.rank];
    }
    lay_out(&view);
    if (t->kind == PLAN_CACHE) lay_out_cache(&view);
    view_columns(&view, operand);
    return view;
}

static tensor bind_tensor(const plan *p, const plan_operand *operand, int64_t layer,
                          const plan_memory *memory, const plan_sizes *sizes)
{
    const plan_view view = plan_view_operand(p, operand);
    char *data = memory->data[operand->id];
    if (p->tensors[operand->id].kind == PLAN_CACHE) {
        data = operand->id == PLAN_K_CACHE ? memory->k_cache : memory->v_cache;
        if (data) data += (size_t)layer * memory->cache_layer_bytes;
    }
    tensor out = {.data = data ? data + view.offset : NULL, .type = view.type, .rank = view.rank};
    for (int d = view.rank - 1; d >= 0; d--) {
        out.shape[d] = view.shape[d] < 0 ? sizes->of[-view.shape[d]] : view.shape[d];
        out.stride[d] = view.stride[d] ? view.stride[d] : out.shape[d + 1] * out.stride[d + 1];
    }
    return out;
}

static tensor bind_weight(const plan *p, const plan_operand *operand, int64_t layer,
                          const plan_memory *memory)
{
    if (memory->model) {
        const model_weight *weight =
            model_get_weight(memory->model, (weight_slot)operand->id, layer);
        tensor view = operand->kind == OPERAND_BIAS ? weight->bias : weight->weight;
        if (operand->id == WEIGHT_TOKEN_EMBD && memory->rows)
            view.data = (void *)(uintptr_t)memory->rows;
        return view;
    }
    if (operand->kind == OPERAND_BIAS) return (tensor){0};
    int64_t rows, columns;
    weight_shape(&p->config, (weight_slot)operand->id, &rows, &columns);
    bool vector = weight_get_info((weight_slot)operand->id)->role == SYNTHETIC_NORM;
    return vector ? tensor_1d(NULL, DTYPE_F32, columns) : tensor_2d(NULL, DTYPE_F32, rows, columns);
}

tensor plan_bind_operand(const plan *p, const plan_node *node, int index, const plan_memory *memory,
                         const plan_sizes *sizes)
{
    const plan_operand *operand = &node->operands[index];
    if (operand->kind == OPERAND_NONE) return (tensor){0};
    if (operand->kind != OPERAND_TENSOR) return bind_weight(p, operand, node->layer, memory);
    return bind_tensor(p, operand, node->layer, memory, sizes);
}

void plan_bind(const plan *p, const plan_node *node, const plan_memory *memory,
               const plan_sizes *sizes, op_call *call)
{
    const op_info *op = op_get(node->op);
    *call = (op_call){0};
    for (int i = 0; i < op_n_tensors(op); i++)
        call->tensors[i] = plan_bind_operand(p, node, i, memory, sizes);
    memcpy(call->params, node->params, sizeof call->params);
}

plan_bytes plan_count_bytes(const plan *p, uint64_t weight_bytes)
{
    plan_bytes bytes = {.weights = weight_bytes, .arena = p->arena_bytes};
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        const plan_tensor *t = &p->tensors[id];
        if (t->kind == PLAN_INPUT) bytes.inputs += t->bytes;
        if (t->kind == PLAN_TABLE) bytes.rope_table += t->bytes;
        if (t->kind == PLAN_CARRIED) bytes.sums += t->bytes;
        if (t->kind == PLAN_STATE) bytes.state += t->bytes;
        if (t->kind == PLAN_CACHE) bytes.kv_cache += t->bytes * (uint64_t)p->config.n_layers;
    }
    bytes.total = bytes.weights + bytes.arena + bytes.sums + bytes.kv_cache + bytes.rope_table +
                  bytes.state + bytes.inputs;
    return bytes;
}

static bool context_fits(const model_config *config, plan_options options, int64_t context,
                         uint64_t weight_bytes, uint64_t available)
{
    plan p;
    options.context = context;
    options.n_pages = 0;
    bool fits = plan_build(config, &options, &p, NULL) == QP_OK &&
                plan_count_bytes(&p, weight_bytes).total <= available;
    plan_free(&p);
    return fits;
}

int64_t plan_largest_context(const model_config *config, const plan_options *options,
                             uint64_t weight_bytes, uint64_t available)
{
    /* Whole pages by halves; the model's own length at last, when even that fits. */
    if (context_fits(config, *options, config->context_length, weight_bytes, available))
        return config->context_length;
    int64_t low = 0, high = config->context_length / options->page_size + 1;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        bool fits =
            context_fits(config, *options, middle * options->page_size, weight_bytes, available);
        *(fits ? &low : &high) = middle;
    }
    return low * options->page_size;
}
