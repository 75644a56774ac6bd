/* Runs a program node by node: see execute.h. */
#include "vm/execute.h"

#include "base/checked.h"
#include "op/exchange.h"
#include "op/run.h"
#include "plan/weights.h"
#include "vm/pack.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };

static size_t scratch_of(const op_info *op, const op_variant *variant, const op_call *call)
{
    if (variant && variant->scratch_bytes) return variant->scratch_bytes(call);
    return op->scratch_bytes ? op->scratch_bytes(call) : 0;
}

void executor_bind(const executor *x, int n, const program_sizes *sizes, op_call *call)
{
    program_bind(x->program, n, &x->memory, sizes->of, call);
    call->packed = x->nodes[n].packed;
}

void executor_select(const executor *x, op_code op, const op_call *call, const op_variant **variant)
{
    const op_variant *given = kernel_table_find(x->kernels, op);
    if (given && (!given->accepts || given->accepts(call)))
        *variant = given;
    else
        op_select(op_get(op), x->cpu_features, call, variant);
}

/* A user-supplied kernel is chosen for a node once, but its check may depend on the number of
 * tokens. It must therefore also accept a call of one token. */
static void choose_kernel(const executor *x, int n, const op_call *call, const op_variant **variant)
{
    const op_code op = x->program->nodes[n].op;
    const op_variant *given = kernel_table_find(x->kernels, op);
    program_sizes one = x->program->capacity;
    op_call least;
    executor_select(x, op, call, variant);
    if (!given || *variant != given || !given->accepts) return;
    program_set_outputs(one.of, 1);
    one.of[AXIS_TOKENS] = one.of[AXIS_SEQUENCES] = 1;
    one.of[AXIS_SEQUENCE_ENDS] = 2;
    one.of[AXIS_LONGEST_Q] = one.of[AXIS_LONGEST_KV] = 1;
    one.of[AXIS_PREFILL_TOKENS] = one.of[AXIS_DECODE_TOKENS] = 1;
    one.of[AXIS_PREFILL_ENDS] = one.of[AXIS_DECODE_ENDS] = 2;
    executor_bind(x, n, &one, &least);
    if (!given->accepts(&least)) op_select(op_get(op), x->cpu_features, call, variant);
}

/* Chooses every node's kernel, and finds the largest scratch that any kernel needs at the program's
 * capacity. */
static void choose_kernels(executor *x)
{
    size_t most = 0;
    for (int n = 0; n < x->program->n_nodes; n++) {
        const op_info *op = op_get(x->program->nodes[n].op);
        op_call call;
        executor_bind(x, n, &x->program->capacity, &call);
        choose_kernel(x, n, &call, &x->nodes[n].variant);
        size_t bytes = scratch_of(op, x->nodes[n].variant, &call);
        if (bytes > most) most = bytes;
    }
    x->scratch_bytes = round_up(most, SCRATCH_ALIGNMENT);
}

static void place_tensors(executor *x)
{
    for (int id = 0; id < x->program->n_tensors; id++) {
        const plan_tensor *t = &x->program->tensors[id];
        if (t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT)
            x->memory.data[id] = (char *)x->arena.data + t->offset;
    }
    if (x->sums.data) {
        x->memory.data[PLAN_SUMS] = x->sums.data;
        x->memory.data[PLAN_SUMS_NEXT] =
            (char *)x->sums.data + x->program->tensors[PLAN_SUMS].bytes;
    }
    char *state = x->state.data;
    for (int id = 0; state && id < x->program->n_tensors; id++) {
        if (x->program->tensors[id].kind != PLAN_STATE) continue;
        x->memory.data[id] = state;
        state += x->program->tensors[id].bytes;
    }
    x->memory.data[PLAN_ROPE_TABLE] = x->rope_table.data;
    x->memory.data[PLAN_ROPE_LOCAL] =
        (char *)x->rope_table.data + x->program->tensors[PLAN_ROPE_TABLE].bytes;
    x->memory.data[PLAN_K_CACHE] = x->k_cache.data;
    x->memory.data[PLAN_V_CACHE] = x->v_cache.data;
    x->memory.cache_layer_bytes = x->program->tensors[PLAN_K_CACHE].bytes;
}

/* Checks that every user-supplied kernel has a node to run. */
static qp_status check_kernels(const executor *x, qp_error *error)
{
    for (int code = 0; code < OP_COUNT; code++) {
        const op_variant *given = kernel_table_find(x->kernels, (op_code)code);
        int n_accepted = code == OP_ARGMAX;
        for (int n = 0; given && n < x->program->n_nodes; n++)
            n_accepted += x->nodes[n].variant == given;
        if (given && n_accepted == 0)
            return kernel_table_refuse(x->program, (op_code)code, given->name, error);
    }
    return QP_OK;
}

qp_status executor_choose(executor *x, const program *program, uint32_t cpu_features,
                          const kernel_table *kernels, qp_error *error)
{
    *x = (executor){.program = program, .cpu_features = cpu_features, .kernels = kernels};
    x->nodes = calloc((size_t)program->n_nodes, sizeof *x->nodes);
    x->weights = calloc((size_t)program->n_weights + 1, sizeof *x->weights);
    if (!x->nodes || !x->weights) return error_no_memory(error, "the choice of kernels", 0);
    for (int i = 0; i < program->n_weights; i++)
        x->weights[i] = program_weight_part(&program->weights[i]).data;
    x->memory.weights = x->weights;
    choose_kernels(x);
    return check_kernels(x, error);
}

/* ---- weights of only this rank ------------------------------------------------------------- */

static size_t own_bytes(const program *p, int weight)
{
    const tensor part = program_weight_part(&p->weights[weight]);
    return part.data || !p->model ? 0 : round_up(tensor_bytes(&part), BUFFER_ALIGNMENT);
}

typedef struct own_task {
    const program *program;
    int weight;
    char *to;
    qp_status status; /* of any worker that failed */
} own_task;

static void read_own_share(void *context, int worker, int n_workers)
{
    own_task *task = context;
    const tensor part = program_weight_part(&task->program->weights[task->weight]);
    const bool is_row = part.rank == 1 && !task->program->weights[task->weight].bias;
    const int64_t rows = is_row ? 1 : part.shape[0];
    const size_t row_bytes = tensor_bytes(&part) / (size_t)rows;
    int64_t begin, end;
    thread_share(rows, worker, n_workers, &begin, &end);
    if (begin == end) return;
    const qp_status status = program_read_weight(task->program, task->weight, begin, end - begin,
                                                 task->to + (size_t)begin * row_bytes, NULL);
    if (status != QP_OK) __atomic_store_n(&task->status, status, __ATOMIC_RELAXED);
}

/* Reads the weights whose part has no memory in the model: those that ranks cut by columns, which
 * are not contiguous there, and those that the model has not made, so that each of several
 * processes makes only its own part. */
static qp_status take_own(executor *x, progress *progress, qp_error *error)
{
    const program *p = x->program;
    size_t total = 0;
    for (int i = 0; i < p->n_weights; i++)
        total += own_bytes(p, i);
    if (total == 0) return QP_OK;
    TRY(buffer_alloc(&x->own, total, "the rank's part of the weights", error));
    progress_begin(progress, "taking the rank's part of the weights", total);
    char *to = x->own.data;
    for (int i = 0; i < p->n_weights; i++) {
        own_task task = {.program = p, .weight = i, .to = to};
        if (own_bytes(p, i) == 0) continue;
        thread_pool_run(x->pool, read_own_share, &task);
        if (task.status != QP_OK) return error_no_memory(error, "a row of a weight", 0);
        x->weights[i] = to;
        to += own_bytes(p, i);
        progress_advance(progress, own_bytes(p, i));
    }
    progress_end(progress);
    return QP_OK;
}

void executor_discard_own(const executor *x, int weight)
{
    const size_t bytes = own_bytes(x->program, weight);
    if (bytes > 0) buffer_release_pages(x->weights[weight], bytes);
}

/* Everything but the packing of weights. */
static qp_status init(executor *x, thread_pool *pool, progress *progress, qp_error *error)
{
    const program *program = x->program;
    x->pool = pool;
    TRY(take_own(x, progress, error));
    TRY(buffer_alloc(&x->arena, program->arena_bytes, "activations", error));
    size_t sums = program->tensors[PLAN_SUMS].bytes + program->tensors[PLAN_SUMS_NEXT].bytes;
    if (sums) TRY(buffer_alloc(&x->sums, sums, "sums", error));
    if (sums) memset(x->sums.data, 0, sums);
    TRY(buffer_alloc(&x->state, program_count_bytes(program, 0).state, "the state of sequences",
                     error));
    TRY(buffer_alloc(&x->rope_table, program_count_bytes(program, 0).rope_table, "the RoPE table",
                     error));
    TRY(buffer_alloc(&x->scratch, x->scratch_bytes * (size_t)thread_pool_size(pool), "scratch",
                     error));
    if (!program_has_dynamic_rope(program)) program_make_tables(program, x->rope_table.data);
    size_t cache_bytes = program->tensors[PLAN_K_CACHE].bytes;
    if (!checked_mul(cache_bytes, (size_t)program->config.n_layers, &cache_bytes))
        return error_set(error, QP_NO_MEMORY, "the KV cache is too large to address");
    static const char what[] =
        "half of the KV cache; a smaller context or fewer sequences take less";
    TRY(buffer_alloc(&x->k_cache, cache_bytes, what, error));
    TRY(buffer_alloc(&x->v_cache, cache_bytes, what, error));
    place_tensors(x);
    progress_stage_ended(progress, "taking memory");
    return QP_OK;
}

qp_status executor_init(executor *x, const program *program, thread_pool *pool,
                        uint32_t cpu_features, const kernel_table *kernels, pack_cache *packed,
                        progress *progress, qp_error *error)
{
    TRY(executor_choose(x, program, cpu_features, kernels, error));
    TRY(init(x, pool, progress, error));
    return executor_pack(x, packed, progress, error);
}

qp_status executor_init_unpacked(executor *x, const program *program, thread_pool *pool,
                                 uint32_t cpu_features, const kernel_table *kernels,
                                 progress *progress, qp_error *error)
{
    TRY(executor_choose(x, program, cpu_features, kernels, error));
    TRY(executor_leave_unpacked(x, error));
    TRY(init(x, pool, progress, error));
    return executor_pack(x, NULL, progress, error);
}

/* What ranks gather from all is one tensor for all, if they share memory. */
static void place_gathered(executor *x, comm *group)
{
    static const plan_tensor_id gathered[] = {PLAN_ATTN_ALL, PLAN_FFN_ALL};
    for (size_t i = 0; i < sizeof gathered / sizeof *gathered; i++) {
        const plan_tensor *t = &x->program->tensors[gathered[i]];
        void *common = group && t->bytes ? comm_common(group, t->bytes) : NULL;
        x->memory.data[gathered[i]] = common ? common : (char *)x->arena.data + t->offset;
    }
}

void executor_join(executor *x, comm *group)
{
    x->crew = group ? comm_crew(group) : NULL;
    place_gathered(x, group);
    for (int n = 0; n < x->program->n_nodes; n++)
        if (op_exchanges(x->program->nodes[n].op)) x->nodes[n].packed = group;
}

void executor_free(executor *x)
{
    buffer_free(&x->arena);
    buffer_free(&x->sums);
    buffer_free(&x->state);
    buffer_free(&x->rope_table);
    buffer_free(&x->k_cache);
    buffer_free(&x->v_cache);
    buffer_free(&x->scratch);
    buffer_free(&x->packed);
    buffer_free(&x->own);
    buffer_free(&x->reading);
    buffer_free(&x->rows.memory);
    free(x->unpacked);
    free(x->nodes);
    free(x->weights);
    x->nodes = NULL;
    x->weights = NULL;
    x->unpacked = NULL;
}

void executor_take_inputs(executor *x, const batch *batch)
{
    for (int id = 0; id < x->program->n_tensors; id++) {
        if (x->program->tensors[id].kind == PLAN_INPUT) x->memory.data[id] = batch->of[id];
    }
    if (batch->angles)
        memcpy(x->rope_table.data, batch->angles,
               (size_t)(batch_tokens(batch) * x->program->config.rope.dim) * sizeof *batch->angles);
    if (x->rows.table) executor_take_rows(x, batch);
}

void executor_begin_pass(executor *x)
{
    void *cleared = x->memory.data[PLAN_SUMS_NEXT];
    x->memory.data[PLAN_SUMS_NEXT] = x->memory.data[PLAN_SUMS];
    x->memory.data[PLAN_SUMS] = cleared;
}

void executor_run(executor *x, const batch *batch, int first, int last)
{
    executor_take_inputs(x, batch);
    if (first == 0) executor_begin_pass(x);
    for (int s = first; s < last; s++) {
        const program_step *step = &x->program->steps[s];
        for (int n = step->first_node; n < step->first_node + step->n_nodes; n++) {
            const op_info *op = op_get(x->program->nodes[n].op);
            op_call call;
            executor_bind(x, n, &batch->sizes, &call);
            const op_variant *variant = x->nodes[n].variant;
            op_run(op, variant ? variant->kernel : op->reference, &call, x->pool, x->scratch.data,
                   x->scratch_bytes);
        }
    }
}

/* Bytes of a page in the K or V cache of a layer. */
static size_t page_bytes(const executor *x)
{
    return x->program->tensors[PLAN_K_CACHE].bytes / (size_t)x->program->capacity.of[AXIS_PAGES];
}

/* Part `part` of a page: K of the first layer, V of the first layer, K of the second, ... */
static char *page_part(const executor *x, int32_t page, int64_t part)
{
    const plan_tensor_id id = part % 2 ? PLAN_V_CACHE : PLAN_K_CACHE;
    return (char *)executor_address(x, id, part / 2) + (size_t)page * page_bytes(x);
}

void executor_copy_page(executor *x, int32_t from, int32_t to)
{
    for (int64_t part = 0; part < 2 * x->program->config.n_layers; part++)
        memcpy(page_part(x, to, part), page_part(x, from, part), page_bytes(x));
}

void executor_read_page(const executor *x, int32_t page, void *data)
{
    const size_t bytes = page_bytes(x);
    for (int64_t part = 0; part < 2 * x->program->config.n_layers; part++)
        memcpy((char *)data + (size_t)part * bytes, page_part(x, page, part), bytes);
}

void executor_write_page(executor *x, int32_t page, const void *data)
{
    const size_t bytes = page_bytes(x);
    for (int64_t part = 0; part < 2 * x->program->config.n_layers; part++)
        memcpy(page_part(x, page, part), (const char *)data + (size_t)part * bytes, bytes);
}

float *executor_logits(const executor *x)
{
    return x->memory.data[PLAN_LOGITS];
}

void *executor_address(const executor *x, plan_tensor_id id, int64_t layer)
{
    const plan_tensor *t = &x->program->tensors[id];
    char *at = x->memory.data[id];
    if (t->kind == PLAN_STATE && layer < 0) return at; /* of all slots */
    if (t->kind == PLAN_STATE) return at + (size_t)layer * (t->bytes / (size_t)t->dims[0].size);
    return t->kind == PLAN_CACHE ? at + (size_t)layer * x->memory.cache_layer_bytes : at;
}
