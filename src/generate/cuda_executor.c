/* Runs a plan on the GPU: see cuda_executor.h. */
#include "generate/cuda_executor.h"

#include "base/checked.h"
#include "op/argmax/argmax.h"
#include "op/linear/linear_stream.h"
#include "op/paged_decode/paged_decode.h"
#include "vm/cuda_attention.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* Passes of more tokens are long enough to be launched as they are, unless all sequences
     * decode: then it is one launch after the other that counts. */
    GRAPH_TOKENS = 8,
    FEW_TOKENS = 8, /* whose kernels fill the GPU from end to end: they begin in turn */
    GRAPH_SEQUENCES = 512,
    FEW_PASSES = 2,
    PINNED_LOGITS = 64 << 20, /* bytes; more outputs go through pageable memory */
};

/* ---- memory -------------------------------------------------------------------------------- */

/* Of one pass, as the batch has them. */
static size_t inputs_bytes(const plan *p)
{
    size_t bytes = 0;
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++)
        if (p->tensors[id].kind == PLAN_INPUT) bytes += round_up(p->tensors[id].bytes, 16);
    return round_up(bytes, CUDA_ALIGNMENT);
}

static size_t tokens_bytes(const plan *p)
{
    return round_up(p->tensors[PLAN_NEXT].bytes, CUDA_ALIGNMENT);
}

/* What attention wants when all sequences that there may be decode at full context. */
static size_t decoding_workspace(const plan *p, const op_call *attention)
{
    op_call call = cuda_decode_of_prefill(attention);
    call.tensors[PAGED_DECODE_Q].shape[0] = p->options.max_sequences;
    bool decodes = cuda_decode_accepts(&call) && cuda_decode_pays(&call);
    return decodes ? cuda_decode_workspace_of(&call, p->options.context) : 0;
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
        if (p->nodes[n].op == OP_PAGED_PREFILL) bytes = decoding_workspace(p, &call);
        if (bytes > most) most = bytes;
    }
    return round_up(most, CUDA_ALIGNMENT);
}

/* Behind the activations: the sums of this pass, then those of the next. */
static size_t sums_offset(const plan *p)
{
    return round_up(p->arena_bytes, CUDA_ALIGNMENT);
}

static size_t sums_bytes(const plan *p)
{
    return p->tensors[PLAN_SUMS].bytes + p->tensors[PLAN_SUMS_NEXT].bytes;
}

cuda_bytes cuda_executor_count(const plan *p, const model *model)
{
    cuda_bytes bytes = {.weights = cuda_weights_bytes(model),
                        .arena = sums_bytes(p) ? sums_offset(p) + sums_bytes(p) : p->arena_bytes,
                        .kv_cache = 2 * p->tensors[PLAN_K_CACHE].bytes * (size_t)p->config.n_layers,
                        .rope_table = p->tensors[PLAN_ROPE_TABLE].bytes,
                        .inputs = CUDA_GROUPS * CUDA_GROUP * (inputs_bytes(p) + tokens_bytes(p)),
                        .workspace = workspace_bytes(p, model) + CUDA_OWN_WORKSPACE};
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
    cuda_address sums = x->arena.address + sums_offset(x->plan);
    if (sums_bytes(x->plan)) {
        x->memory.data[PLAN_SUMS] = host_form(sums);
        x->memory.data[PLAN_SUMS_NEXT] = host_form(sums + x->plan->tensors[PLAN_SUMS].bytes);
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
    TRY(cuda_ops_init(&x->ops, d, bytes.workspace - CUDA_OWN_WORKSPACE, true, error));
    size_t logits = p->tensors[PLAN_LOGITS].bytes;
    if (logits <= PINNED_LOGITS) TRY(cuda_pinned_alloc(d, logits, "logits", &x->logits, error));
    place_tensors(x);
    return QP_OK;
}

/* Every pass clears the sums of the next; nobody those of the first. */
static qp_status clear_sums(cuda_executor *x, qp_error *error)
{
    size_t bytes = sums_bytes(x->plan);
    if (bytes == 0) return QP_OK;
    void *zeros = calloc(1, bytes);
    if (!zeros) return error_no_memory(error, "sums", bytes);
    qp_status status =
        cuda_check(x->device->driver->copy_to_device(x->arena.address + sums_offset(x->plan), zeros,
                                                     bytes, x->device->stream),
                   "clearing sums", error);
    if (status == QP_OK) status = cuda_device_wait(x->device, "clearing sums", error);
    free(zeros);
    return status;
}

/* A pass begins: the sums that the last one has cleared are this one's. */
static void begin_pass(cuda_executor *x)
{
    void *cleared = x->memory.data[PLAN_SUMS_NEXT];
    x->memory.data[PLAN_SUMS_NEXT] = x->memory.data[PLAN_SUMS];
    x->memory.data[PLAN_SUMS] = cleared;
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
    TRY(clear_sums(x, error));
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
    for (int i = 0; i < CUDA_GROUPS; i++)
        if (x->ended[i]) d->driver->event_destroy(x->ended[i]);
    if (x->copies) d->driver->stream_destroy(x->copies);
    cuda_pinned_free(d, &x->staged);
    cuda_pinned_free(d, &x->tokens);
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

/* Of pass `pass` of a group; a pass by itself is the first of the first. */
static cuda_address inputs_of(const cuda_executor *x, int group, int pass)
{
    return x->inputs.address + (size_t)(group * CUDA_GROUP + pass) * inputs_bytes(x->plan);
}

static void place_inputs(cuda_executor *x, const batch *batch, int group, int pass)
{
    cuda_address slot = inputs_of(x, group, pass);
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        if (x->plan->tensors[id].kind != PLAN_INPUT) continue;
        size_t at = (size_t)((char *)batch->of[id] - (char *)batch->memory);
        x->memory.data[id] = host_form(slot + at);
    }
}

qp_status cuda_executor_take_inputs(cuda_executor *x, const batch *batch, qp_error *error)
{
    place_inputs(x, batch, 0, 0);
    TRY(cuda_device_enter(x->device, error));
    if (x->table && x->plan->config.rope.scaling == ROPE_DYNAMIC) TRY(copy_table(x, error));
    return cuda_check(x->device->driver->copy_to_device(x->inputs.address, batch->memory,
                                                        batch->memory_bytes, x->device->stream),
                      "copying inputs to the GPU", error);
}

/* What is known of a pass before it is run. */
static cuda_pass shape_of(const cuda_executor *x, const batch *batch, int first, int last,
                          int group, int n_passes)
{
    const int64_t *of = batch->sizes.of;
    return (cuda_pass){.n_tokens = of[-PLAN_TOKENS],
                       .n_sequences = of[-PLAN_SEQUENCES],
                       .n_outputs = of[-PLAN_OUTPUTS],
                       .n_chunks = cuda_decode_chunks(x->ops.longest),
                       .first = first,
                       .last = last,
                       .n_passes = n_passes,
                       .group = group,
                       .sums = x->memory.data[PLAN_SUMS]};
}

/* The pass of that shape, a new one where there is none; the oldest gives way. */
static cuda_pass *find_pass(cuda_executor *x, const cuda_pass *wanted)
{
    for (int i = 0; i < CUDA_MAX_GRAPHS; i++) {
        cuda_pass *p = &x->passes[i];
        if (p->runs && p->n_tokens == wanted->n_tokens && p->n_sequences == wanted->n_sequences &&
            p->n_outputs == wanted->n_outputs && p->n_chunks == wanted->n_chunks &&
            p->first == wanted->first && p->last == wanted->last &&
            p->n_passes == wanted->n_passes && p->group == wanted->group && p->sums == wanted->sums)
            return p;
    }
    cuda_pass *pass = &x->passes[x->next_pass];
    x->next_pass = (x->next_pass + 1) % CUDA_MAX_GRAPHS;
    if (pass->graph) x->device->driver->graph_exec_destroy(pass->graph);
    *pass = *wanted;
    return pass;
}

static qp_status launch_group(cuda_executor *x, const batch *batch, const plan_sizes *sizes,
                              const cuda_pass *shape, qp_error *error);

static qp_status capture(cuda_executor *x, const batch *batch, const plan_sizes *sizes,
                         cuda_pass *pass, qp_error *error)
{
    static const char operation[] = "capturing a forward pass in a graph";
    const cuda_driver *driver = x->device->driver;
    cuda_graph graph = NULL;
    TRY(cuda_check(driver->capture_begin(x->device->stream, CUDA_CAPTURE_THREAD_LOCAL), operation,
                   error));
    qp_status status = pass->n_passes > 0
                           ? launch_group(x, batch, sizes, pass, error)
                           : cuda_executor_launch(x, sizes, pass->first, pass->last, error);
    cuda_result ended = driver->capture_end(x->device->stream, &graph);
    if (status == QP_OK) status = cuda_check(ended, operation, error);
    if (status == QP_OK)
        status = cuda_check(driver->graph_instantiate(&pass->graph, graph, 0), operation, error);
    if (graph) driver->graph_destroy(graph);
    return status;
}

/* The most positions of a sequence, where each of several has one new token; else 0. */
static int64_t longest_decoding(const batch *batch)
{
    int64_t n = batch->sizes.of[-PLAN_SEQUENCES], longest = 0;
    if (n < 2 || n != batch_tokens(batch)) return 0;
    const int32_t *positions = batch_i32(batch, PLAN_POSITION_IDS);
    for (int64_t i = 0; i < n; i++)
        if (positions[i] >= longest) longest = positions[i] + 1;
    return longest;
}

/* No kernel looks at how many pages there are in all, so that a graph outlives their growth. */
static plan_sizes sizes_of(const cuda_executor *x, const batch *batch)
{
    plan_sizes sizes = batch->sizes;
    sizes.of[-PLAN_PAGE_REFS] = x->plan->capacity.of[-PLAN_PAGE_REFS];
    return sizes;
}

/* Puts steps [first, last) into the stream, whose inputs are on the GPU. */
static qp_status run_steps(cuda_executor *x, const batch *batch, int first, int last,
                           qp_error *error)
{
    const plan_sizes sizes = sizes_of(x, batch);
    x->ops.longest = longest_decoding(batch);
    x->early = batch_tokens(batch) > FEW_TOKENS;
    if (first == 0) begin_pass(x);
    int64_t most = x->ops.longest > 0 ? GRAPH_SEQUENCES : GRAPH_TOKENS;
    if (batch_tokens(batch) > most || last - first < 2 || x->marks)
        return cuda_executor_launch(x, &sizes, first, last, error);
    const cuda_pass wanted = shape_of(x, batch, first, last, 0, 0);
    cuda_pass *pass = find_pass(x, &wanted);
    if (pass->runs++ == 0) return cuda_executor_launch(x, &sizes, first, last, error);
    if (!pass->graph) TRY(capture(x, batch, &sizes, pass, error));
    return cuda_check(x->device->driver->graph_launch(pass->graph, x->device->stream),
                      "running a forward pass", error);
}

qp_status cuda_executor_run(cuda_executor *x, const batch *batch, int first, int last,
                            qp_error *error)
{
    TRY(cuda_executor_take_inputs(x, batch, error));
    return run_steps(x, batch, first, last, error);
}

/* ---- groups of passes ---------------------------------------------------------------------- */

static qp_status allocate_groups(cuda_executor *x, qp_error *error)
{
    static const char operation[] = "preparing passes";
    const cuda_driver *driver = x->device->driver;
    const size_t passes = CUDA_GROUPS * CUDA_GROUP;
    if (x->tokens.data) return QP_OK;
    TRY(cuda_check(driver->stream_create(&x->copies, CUDA_STREAM_NON_BLOCKING), operation, error));
    for (int i = 0; i < CUDA_GROUPS; i++)
        TRY(cuda_check(driver->event_create(&x->ended[i], CUDA_EVENT_NO_TIMING), operation, error));
    TRY(cuda_pinned_alloc(x->device, passes * inputs_bytes(x->plan), "inputs", &x->staged, error));
    return cuda_pinned_alloc(x->device, CUDA_GROUP * tokens_bytes(x->plan), "tokens", &x->tokens,
                             error);
}

/* A pass's inputs, on this machine. */
static char *staged_inputs(const cuda_executor *x, int group, int pass)
{
    return (char *)x->staged.data + (size_t)(group * CUDA_GROUP + pass) * inputs_bytes(x->plan);
}

/* What the last pass but `back` of a group makes likeliest. */
static cuda_address tokens_of(const cuda_executor *x, int group, int back)
{
    return inputs_of(x, CUDA_GROUPS, 0) +
           (size_t)(group * CUDA_GROUP + CUDA_GROUP - 1 - back) * tokens_bytes(x->plan);
}

int cuda_executor_group(const cuda_executor *x, int64_t n_sequences)
{
    if (x->plan->config.rope.scaling == ROPE_DYNAMIC) return 1; /* with a table of its own each */
    return n_sequences > LINEAR_STREAM_MAX_X ? FEW_PASSES : CUDA_GROUP;
}

qp_status cuda_executor_stage(cuda_executor *x, const batch *batch, int group, int pass,
                              qp_error *error)
{
    TRY(cuda_device_enter(x->device, error));
    TRY(allocate_groups(x, error));
    memcpy(staged_inputs(x, group, pass), batch->memory, batch->memory_bytes);
    if (pass == 0) x->longest = longest_decoding(batch);
    return QP_OK;
}

/* Where no kernel has left the likeliest token of each row of logits, one does. */
static qp_status launch_argmax(cuda_executor *x, qp_error *error)
{
    int64_t n = x->likeliest.shape[0];
    op_call call = {.end = n};
    if (!x->likeliest.rank) return QP_OK;
    call.tensors[ARGMAX_LOGITS] =
        tensor_2d(x->memory.data[PLAN_LOGITS], DTYPE_F32, n, x->plan->config.vocab_size);
    call.tensors[ARGMAX_IDS] = x->likeliest;
    const cuda_kernel *kernel = cuda_ops_choose(&x->ops, OP_ARGMAX, &call);
    return cuda_ops_launch(&x->ops, kernel, &call, error);
}

/* Every pass reads the tokens of the one before, the first those of the other group's last. */
static qp_status launch_group(cuda_executor *x, const batch *batch, const plan_sizes *sizes,
                              const cuda_pass *shape, qp_error *error)
{
    const int n = shape->n_passes;
    cuda_address read = tokens_of(x, (shape->group + 1) % CUDA_GROUPS, 0), made;
    qp_status status = QP_OK;
    for (int pass = 0; pass < n && status == QP_OK; pass++, read = made) {
        made = tokens_of(x, shape->group, n - 1 - pass);
        begin_pass(x);
        place_inputs(x, batch, shape->group, pass);
        x->memory.data[PLAN_TOKEN_IDS] = host_form(read);
        x->follows = x->early && pass > 0;
        x->ops.longest = x->longest > 0 ? x->longest + pass : 0;
        x->likeliest = tensor_1d(host_form(made), DTYPE_I32, shape->n_outputs);
        status = cuda_executor_launch(x, sizes, shape->first, shape->last, error);
        if (status == QP_OK) status = launch_argmax(x, error);
    }
    x->follows = false;
    x->likeliest.rank = 0;
    return status;
}

/* Several passes are captured while they run for the first time. */
static qp_status run_group(cuda_executor *x, const batch *batch, int last, int group, int n_passes,
                           qp_error *error)
{
    const plan_sizes sizes = sizes_of(x, batch);
    void *const sums[2] = {x->memory.data[PLAN_SUMS], x->memory.data[PLAN_SUMS_NEXT]};
    x->ops.longest = x->longest;
    x->early = batch_tokens(batch) > FEW_TOKENS;
    const cuda_pass wanted = shape_of(x, batch, 0, last, group, n_passes);
    bool same = wanted.n_chunks == cuda_decode_chunks(x->longest + n_passes - 1);
    if (!same || batch_tokens(batch) > GRAPH_SEQUENCES || x->marks)
        return launch_group(x, batch, &sizes, &wanted, error);
    cuda_pass *pass = find_pass(x, &wanted);
    if (pass->graph) {
        for (int i = 0; i < n_passes; i++)
            begin_pass(x);
        return cuda_check(x->device->driver->graph_launch(pass->graph, x->device->stream),
                          "running forward passes", error);
    }
    TRY(launch_group(x, batch, &sizes, &wanted, error));
    if (pass->runs++ == 0 && n_passes == 1) return QP_OK;
    x->memory.data[PLAN_SUMS] = sums[0];
    x->memory.data[PLAN_SUMS_NEXT] = sums[1];
    return capture(x, batch, &sizes, pass, error);
}

/* Copies what a group reads, and waits for that; its first tokens too where no group before it
 * makes them. */
static qp_status copy_staged(cuda_executor *x, const batch *batch, int group, int n_passes,
                             bool continues, qp_error *error)
{
    static const char operation[] = "copying inputs to the GPU";
    const cuda_driver *driver = x->device->driver;
    const size_t ids = (size_t)((char *)batch->of[PLAN_TOKEN_IDS] - (char *)batch->memory);
    const char *from = staged_inputs(x, group, 0);
    TRY(cuda_check(driver->copy_to_device(inputs_of(x, group, 0), from,
                                          (size_t)n_passes * inputs_bytes(x->plan), x->copies),
                   operation, error));
    if (!continues)
        TRY(cuda_check(
            driver->copy_to_device(tokens_of(x, (group + 1) % CUDA_GROUPS, 0), from + ids,
                                   (size_t)batch_tokens(batch) * sizeof(int32_t), x->copies),
            operation, error));
    return cuda_check(driver->stream_synchronize(x->copies), operation, error);
}

qp_status cuda_executor_decode(cuda_executor *x, const batch *batch, int last, int group,
                               int n_passes, bool continues, qp_error *error)
{
    if (x->table && x->plan->config.rope.scaling == ROPE_DYNAMIC) TRY(copy_table(x, error));
    TRY(copy_staged(x, batch, group, n_passes, continues, error));
    TRY(run_group(x, batch, last, group, n_passes, error));
    return cuda_check(x->device->driver->event_record(x->ended[group], x->device->stream),
                      "running forward passes", error);
}

qp_status cuda_executor_read_tokens(cuda_executor *x, int group, int64_t n, int n_passes,
                                    int32_t *tokens, qp_error *error)
{
    static const char operation[] = "copying tokens from the GPU";
    const cuda_driver *driver = x->device->driver;
    const size_t pitch = tokens_bytes(x->plan);
    TRY(cuda_device_enter(x->device, error));
    TRY(cuda_check(driver->event_synchronize(x->ended[group]), "the forward passes", error));
    TRY(cuda_check(driver->copy_to_host(x->tokens.data, tokens_of(x, group, n_passes - 1),
                                        (size_t)n_passes * pitch, x->copies),
                   operation, error));
    TRY(cuda_check(driver->stream_synchronize(x->copies), operation, error));
    for (int pass = 0; pass < n_passes; pass++)
        memcpy(tokens + pass * n, (char *)x->tokens.data + (size_t)pass * pitch,
               (size_t)n * sizeof *tokens);
    return QP_OK;
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
