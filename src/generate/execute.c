/* Runs a plan operator by operator: see execute.h. */
#include "generate/execute.h"

#include "base/checked.h"
#include "op/run.h"

#include <assert.h>
#include <stdlib.h>

enum { SCRATCH_ALIGNMENT = 64, MAX_ROTARY_DIM = 4096 };

static void fill_rope_table(executor *x)
{
    const rope_config *rope = &x->plan->config.rope;
    float frequencies[MAX_ROTARY_DIM / 2];
    rope_inverse_frequencies(rope, 0, frequencies);
    float *table = x->rope_table.data; /* (n_positions, rotary_dim) */
    for (int64_t p = 0; p < x->plan->capacity.of[-PLAN_POSITIONS]; p++)
        rope_table_row(rope, frequencies, p, table + p * rope->dim);
}

void executor_set_rope_row(executor *x, int64_t row, int64_t position, int64_t length)
{
    const rope_config *rope = &x->plan->config.rope;
    float frequencies[MAX_ROTARY_DIM / 2];
    rope_inverse_frequencies(rope, length, frequencies);
    rope_table_row(rope, frequencies, position, (float *)x->rope_table.data + row * rope->dim);
}

/* Scratch of the neediest node, at the plan's capacity. */
static size_t most_scratch(const executor *x)
{
    size_t most = 0;
    for (int n = 0; n < x->plan->n_nodes; n++) {
        const plan_node *node = &x->plan->nodes[n];
        const op_info *op = op_get(node->op);
        if (!op->scratch_bytes) continue;
        op_call call;
        plan_bind(x->plan, node, &x->memory, &x->plan->capacity, &call);
        size_t bytes = op->scratch_bytes(&call);
        if (bytes > most) most = bytes;
    }
    return round_up(most, SCRATCH_ALIGNMENT);
}

static void place_tensors(executor *x)
{
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        const plan_tensor *t = &x->plan->tensors[id];
        if (t->kind == PLAN_ACTIVATION || t->kind == PLAN_OUTPUT)
            x->memory.data[id] = (char *)x->arena.data + t->offset;
    }
    x->memory.data[PLAN_ROPE_TABLE] = x->rope_table.data;
    x->memory.k_cache = x->k_cache.data;
    x->memory.v_cache = x->v_cache.data;
    x->memory.cache_layer_bytes = x->plan->tensors[PLAN_K_CACHE].bytes;
}

qp_status executor_init(executor *x, const plan *plan, const model *model, thread_pool *pool,
                        uint32_t cpu_features, qp_error *error)
{
    assert(plan->config.rope.dim <= MAX_ROTARY_DIM);
    *x = (executor){.plan = plan, .pool = pool, .cpu_features = cpu_features};
    size_t cache_bytes = plan->tensors[PLAN_K_CACHE].bytes;
    if (!checked_mul(cache_bytes, (size_t)plan->config.n_layers, &cache_bytes))
        return error_set(error, QP_NO_MEMORY, "the KV cache is too large to address");
    TRY(buffer_alloc(&x->arena, plan->arena_bytes, "activations", error));
    TRY(buffer_alloc(&x->rope_table, plan->tensors[PLAN_ROPE_TABLE].bytes, "the RoPE table",
                     error));
    TRY(buffer_alloc(&x->k_cache, cache_bytes, "the KV cache", error));
    TRY(buffer_alloc(&x->v_cache, cache_bytes, "the KV cache", error));
    x->memory.model = model;
    place_tensors(x);
    x->scratch_bytes = most_scratch(x);
    TRY(buffer_alloc(&x->scratch, x->scratch_bytes * (size_t)thread_pool_size(pool), "scratch",
                     error));
    if (plan->config.rope.scaling != ROPE_DYNAMIC) fill_rope_table(x);
    return QP_OK;
}

void executor_free(executor *x)
{
    buffer_free(&x->arena);
    buffer_free(&x->rope_table);
    buffer_free(&x->k_cache);
    buffer_free(&x->v_cache);
    buffer_free(&x->scratch);
}

void executor_run(executor *x, const batch *batch, int first, int last)
{
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        if (x->plan->tensors[id].kind == PLAN_INPUT) x->memory.data[id] = batch->of[id];
    }
    for (int s = first; s < last; s++) {
        const plan_step *step = &x->plan->steps[s];
        for (int n = step->first_node; n < step->first_node + step->n_nodes; n++) {
            const plan_node *node = &x->plan->nodes[n];
            const op_info *op = op_get(node->op);
            op_call call;
            plan_bind(x->plan, node, &x->memory, &batch->sizes, &call);
            op_kernel *kernel = op_select(op, x->cpu_features, &call, NULL);
            op_run(op, kernel, &call, x->pool, x->scratch.data, x->scratch_bytes);
        }
    }
}

float *executor_logits(const executor *x)
{
    return x->memory.data[PLAN_LOGITS];
}
