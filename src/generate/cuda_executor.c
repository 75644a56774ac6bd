/* Runs a plan on the GPU: see cuda_executor.h. */
#include "generate/cuda_executor.h"

#include "base/checked.h"
#include "op/linear/linear.h"

#include <stdint.h>
#include <string.h>

enum {
    GRAPH_TOKENS = 8,         /* passes of more tokens are long enough to be launched as they are */
    PINNED_LOGITS = 64 << 20, /* bytes; more outputs go through pageable memory */
};

/* ---- memory -------------------------------------------------------------------------------- */

static size_t inputs_bytes(const plan *p)
{
    size_t bytes = 0;
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++)
        if (p->tensors[id].kind == PLAN_INPUT) bytes += round_up(p->tensors[id].bytes, 16);
    return bytes;
}

/* The most that any node's kernel wants, at the plan's capacity. */
static size_t workspace_bytes(const plan *p, const model *model)
{
    size_t most = 0;
    const plan_memory memory = {.model = model};
    for (int n = 0; n < p->n_nodes; n++) {
        op_call call;
        plan_bind(p, &p->nodes[n], &memory, &p->capacity, &call);
        size_t bytes = cuda_ops_workspace(p->nodes[n].op, &call);
        if (bytes > most) most = bytes;
    }
    return most;
}

cuda_bytes cuda_executor_count(const plan *p, const model *model)
{
    cuda_bytes bytes = {.weights = cuda_weights_bytes(model),
                        .arena = p->arena_bytes,
                        .kv_cache = 2 * p->tensors[PLAN_K_CACHE].bytes * (size_t)p->config.n_layers,
                        .rope_table = p->tensors[PLAN_ROPE_TABLE].bytes,
                        .inputs = inputs_bytes(p),
                        .workspace = workspace_bytes(p, model) + CUDA_BLAS_WORKSPACE};
    bytes.total = bytes.weights + bytes.arena + bytes.kv_cache + bytes.rope_table + bytes.inputs +
                  bytes.workspace;
    return bytes;
}

static qp_status check_memory(const cuda_executor *x, qp_error *error)
{
    cuda_bytes need = cuda_executor_count(x->plan, x->model);
    size_t available;
    TRY(cuda_device_free_memory(x->device, &available, error));
    if (need.total <= available) return QP_OK;
    const double gib = 1 << 30;
    return error_set(error, QP_NO_MEMORY,
                     "%s needs %.2f GiB on the GPU (weights %.2f, KV cache %.2f for a context of "
                     "%lld, activations %.2f), but %.2f GiB of %s are free; a smaller --context or "
                     "--chunk needs less",
                     model_path(x->model), (double)need.total / gib, (double)need.weights / gib,
                     (double)need.kv_cache / gib, (long long)x->plan->options.context,
                     (double)(need.arena + need.workspace) / gib, (double)available / gib,
                     x->device->name);
}

static void *host_form(cuda_address address)
{
    return (void *)(uintptr_t)address;
}

static void place_tensors(cuda_executor *x)
{
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        const plan_tensor *t = &x->plan->tensors[id];
        if (t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT)
            x->memory.data[id] = host_form(x->arena.address + t->offset);
    }
    x->memory.data[PLAN_ROPE_TABLE] = host_form(x->rope_table.address);
    x->memory.k_cache = host_form(x->k_cache.address);
    x->memory.v_cache = host_form(x->v_cache.address);
    x->memory.cache_layer_bytes = x->plan->tensors[PLAN_K_CACHE].bytes;
    x->memory.model = x->model;
}

static qp_status allocate(cuda_executor *x, qp_error *error)
{
    const plan *p = x->plan;
    cuda_device *d = x->device;
    cuda_bytes bytes = cuda_executor_count(p, x->model);
    TRY(cuda_buffer_alloc(d, bytes.arena, "activations", &x->arena, error));
    TRY(cuda_buffer_alloc(d, bytes.rope_table, "the RoPE table", &x->rope_table, error));
    TRY(cuda_buffer_alloc(d, bytes.kv_cache / 2, "the KV cache", &x->k_cache, error));
    TRY(cuda_buffer_alloc(d, bytes.kv_cache / 2, "the KV cache", &x->v_cache, error));
    TRY(cuda_buffer_alloc(d, bytes.inputs, "inputs", &x->inputs, error));
    TRY(cuda_ops_init(&x->ops, d, bytes.workspace - CUDA_BLAS_WORKSPACE, true, error));
    size_t logits = p->tensors[PLAN_LOGITS].bytes;
    if (logits <= PINNED_LOGITS) TRY(cuda_pinned_alloc(d, logits, "logits", &x->logits, error));
    place_tensors(x);
    return QP_OK;
}

static qp_status copy_table(cuda_executor *x, qp_error *error)
{
    return cuda_check(x->device->driver->copy_to_device(x->rope_table.address, x->table,
                                                        x->rope_table.bytes, x->device->stream),
                      "copying the RoPE table to the GPU", error);
}

qp_status cuda_executor_init(cuda_executor *x, cuda_device *device, const plan *plan,
                             const model *model, const float *rope_table, progress *progress,
                             qp_error *error)
{
    *x = (cuda_executor){.plan = plan, .model = model, .device = device, .table = rope_table};
    TRY(check_memory(x, error));
    TRY(cuda_weights_load(device, model, progress, &x->weights, error));
    TRY(allocate(x, error));
    if (plan->config.rope.scaling != ROPE_DYNAMIC) TRY(copy_table(x, error));
    return cuda_device_wait(device, "preparing the GPU", error);
}

void cuda_executor_free(cuda_executor *x)
{
    cuda_device *d = x->device;
    if (!d || !d->context) return;
    d->driver->context_set(d->context);
    d->driver->stream_synchronize(d->stream);
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++)
        if (x->passes[i].graph) d->driver->graph_exec_destroy(x->passes[i].graph);
    cuda_ops_free(&x->ops);
    cuda_pinned_free(d, &x->logits);
    cuda_buffer_free(d, &x->inputs);
    cuda_buffer_free(d, &x->v_cache);
    cuda_buffer_free(d, &x->k_cache);
    cuda_buffer_free(d, &x->rope_table);
    cuda_buffer_free(d, &x->arena);
    cuda_weights_free(d, &x->weights);
    *x = (cuda_executor){0};
}

/* ---- running ------------------------------------------------------------------------------- */

void cuda_executor_bind(const cuda_executor *x, int node, const plan_sizes *sizes, op_call *call)
{
    const plan_node *n = &x->plan->nodes[node];
    const op_info *op = op_get(n->op);
    plan_bind(x->plan, n, &x->memory, sizes, call);
    for (int i = 0; i < op_n_tensors(op); i++) {
        const plan_operand *operand = &n->operands[i];
        if (operand->kind != OPERAND_WEIGHT && operand->kind != OPERAND_BIAS) continue;
        cuda_address at = cuda_weights_address(&x->weights, (weight_slot)operand->id, n->layer,
                                               operand->kind == OPERAND_BIAS);
        call->tensors[i].data = host_form(at);
    }
    call->end = op->units(call);
}

qp_status cuda_executor_take_inputs(cuda_executor *x, const batch *batch, qp_error *error)
{
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        if (x->plan->tensors[id].kind != PLAN_INPUT) continue;
        size_t at = (size_t)((char *)batch->of[id] - (char *)batch->memory);
        x->memory.data[id] = host_form(x->inputs.address + at);
    }
    TRY(cuda_device_enter(x->device, error));
    if (x->table && x->plan->config.rope.scaling == ROPE_DYNAMIC) TRY(copy_table(x, error));
    return cuda_check(x->device->driver->copy_to_device(x->inputs.address, batch->memory,
                                                        batch->memory_bytes, x->device->stream),
                      "copying inputs to the GPU", error);
}

static bool same_rows(const tensor *a, const tensor *b)
{
    return a->data == b->data && a->type == b->type && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

/* Whether what a node writes is what the next node, behind which `end` lies, multiplies by
 * cuBLASLt. */
static bool feeds_product(const cuda_executor *x, int node, int end, const plan_sizes *sizes,
                          const cuda_kernel *kernel, const tensor *out)
{
    op_call next;
    if (!kernel->narrowing || node + 1 >= end || x->plan->nodes[node + 1].op != OP_LINEAR)
        return false;
    cuda_executor_bind(x, node + 1, sizes, &next);
    const cuda_kernel *product = cuda_ops_choose(&x->ops, OP_LINEAR, &next);
    return product && product->whole && same_rows(&next.tensors[LINEAR_X], out);
}

/* The first output among a call's tensors. */
static const tensor *output_of(op_code op, const op_call *call)
{
    int t = 0;
    while (op_get(op)->tensors[t].direction != OP_OUT)
        t++;
    return &call->tensors[t];
}

/* Runs a node; `end`: behind the last of this pass. */
static qp_status launch_node(cuda_executor *x, int node, int end, const plan_sizes *sizes,
                             qp_error *error)
{
    op_code op = x->plan->nodes[node].op;
    op_call call;
    if (op == OP_ALL_REDUCE && x->plan->options.ranks == 1) return QP_OK; /* of one: itself */
    cuda_executor_bind(x, node, sizes, &call);
    const cuda_kernel *kernel = cuda_ops_choose(&x->ops, op, &call);
    if (!kernel)
        return error_set(error, QP_UNSUPPORTED,
                         "the GPU has no kernel of %s for this model: use --device cpu",
                         op_get(op)->name);
    if (kernel->narrowing) {
        const tensor *out = output_of(op, &call);
        if (feeds_product(x, node, end, sizes, kernel, out)) cuda_ops_narrow_next(&x->ops, out);
    }
    return cuda_ops_launch(&x->ops, kernel, &call, error);
}

static qp_status launch_steps(cuda_executor *x, const plan_sizes *sizes, int first, int last,
                              qp_error *error)
{
    const plan_step *steps = x->plan->steps;
    if (first == last) return QP_OK;
    int end = steps[last - 1].first_node + steps[last - 1].n_nodes;
    x->ops.narrowed.rank = 0;
    for (int n = steps[first].first_node; n < end; n++)
        TRY(launch_node(x, n, end, sizes, error));
    return QP_OK;
}

/* The pass of that shape, a new one where there is none; the oldest gives way. */
static cuda_pass *find_pass(cuda_executor *x, const batch *batch, int first, int last)
{
    const int64_t *of = batch->sizes.of;
    cuda_pass wanted = {.n_tokens = of[-PLAN_TOKENS],
                        .n_sequences = of[-PLAN_SEQUENCES],
                        .n_outputs = of[-PLAN_OUTPUTS],
                        .first = first,
                        .last = last};
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        cuda_pass *p = &x->passes[i];
        if (p->runs && p->n_tokens == wanted.n_tokens && p->n_sequences == wanted.n_sequences &&
            p->n_outputs == wanted.n_outputs && p->first == first && p->last == last)
            return p;
    }
    cuda_pass *pass = &x->passes[x->next_pass];
    x->next_pass = (x->next_pass + 1) % CUDA_MAX_GRAPHS;
    if (pass->graph) x->device->driver->graph_exec_destroy(pass->graph);
    *pass = wanted;
    return pass;
}

static qp_status capture(cuda_executor *x, const plan_sizes *sizes, cuda_pass *pass,
                         qp_error *error)
{
    static const char operation[] = "capturing a forward pass in a graph";
    const cuda_driver *driver = x->device->driver;
    cuda_graph graph = NULL;
    TRY(cuda_check(driver->capture_begin(x->device->stream, CUDA_CAPTURE_THREAD_LOCAL), operation,
                   error));
    qp_status status = launch_steps(x, sizes, pass->first, pass->last, error);
    cuda_result ended = driver->capture_end(x->device->stream, &graph);
    if (status == QP_OK) status = cuda_check(ended, operation, error);
    if (status == QP_OK)
        status = cuda_check(driver->graph_instantiate(&pass->graph, graph, 0), operation, error);
    if (graph) driver->graph_destroy(graph);
    return status;
}

qp_status cuda_executor_run(cuda_executor *x, const batch *batch, int first, int last,
                            qp_error *error)
{
    /* No kernel looks at how many pages there are in all, so that a graph outlives their growth. */
    plan_sizes sizes = batch->sizes;
    sizes.of[-PLAN_PAGE_REFS] = x->plan->capacity.of[-PLAN_PAGE_REFS];
    TRY(cuda_executor_take_inputs(x, batch, error));
    if (batch_tokens(batch) > GRAPH_TOKENS || last - first < 2)
        return launch_steps(x, &sizes, first, last, error);
    cuda_pass *pass = find_pass(x, batch, first, last);
    if (pass->runs++ == 0) return launch_steps(x, &sizes, first, last, error);
    if (!pass->graph) TRY(capture(x, &sizes, pass, error));
    return cuda_check(x->device->driver->graph_launch(pass->graph, x->device->stream),
                      "running a forward pass", error);
}

/* ---- reading back -------------------------------------------------------------------------- */

qp_status cuda_executor_read_logits(cuda_executor *x, int64_t n_outputs, float *out,
                                    qp_error *error)
{
    const cuda_device *d = x->device;
    size_t bytes = (size_t)n_outputs * (size_t)x->plan->config.vocab_size * sizeof *out;
    void *to = x->logits.data ? x->logits.data : out;
    TRY(cuda_device_enter(d, error));
    TRY(cuda_check(
        d->driver->copy_to_host(to, cuda_executor_address(x, PLAN_LOGITS, 0), bytes, d->stream),
        "copying logits from the GPU", error));
    TRY(cuda_device_wait(d, "the forward pass", error));
    if (to != out) memcpy(out, to, bytes);
    return QP_OK;
}

cuda_address cuda_executor_address(const cuda_executor *x, plan_tensor_id id, int64_t layer)
{
    if (x->plan->tensors[id].kind != PLAN_CACHE) return (cuda_address)(uintptr_t)x->memory.data[id];
    cuda_address cache = id == PLAN_K_CACHE ? x->k_cache.address : x->v_cache.address;
    return cache + (size_t)layer * x->memory.cache_layer_bytes;
}

qp_status cuda_executor_read(cuda_executor *x, plan_tensor_id id, int64_t layer, void *data,
                             size_t bytes, qp_error *error)
{
    const cuda_device *d = x->device;
    TRY(cuda_device_enter(d, error));
    TRY(cuda_check(
        d->driver->copy_to_host(data, cuda_executor_address(x, id, layer), bytes, d->stream),
        "copying a tensor from the GPU", error));
    return cuda_device_wait(d, "the forward pass", error);
}

qp_status cuda_executor_write(cuda_executor *x, plan_tensor_id id, int64_t layer, const void *data,
                              size_t bytes, qp_error *error)
{
    const cuda_device *d = x->device;
    TRY(cuda_device_enter(d, error));
    TRY(cuda_check(
        d->driver->copy_to_device(cuda_executor_address(x, id, layer), data, bytes, d->stream),
        "copying a tensor to the GPU", error));
    return cuda_device_wait(d, "copying a tensor to the GPU", error);
}
