/* Choosing tokens on the CPU: see chooser.h. */
#include "engine/chooser.h"

#include "op/run.h"
#include "op/sampling/sampling.h"

#include <assert.h>
#include <stdlib.h>

static const op_variant *variant_of(const chooser *c, const op_call *call, op_kernel **kernel)
{
    const op_variant *variant;
    *kernel = op_select(op_get(OP_SAMPLING), c->cpu_features, call, &variant);
    return variant;
}

static size_t scratch_of(const chooser *c, const op_call *call)
{
    op_kernel *kernel;
    const op_info *op = op_get(OP_SAMPLING);
    const op_variant *variant = variant_of(c, call, &kernel);
    if (variant && variant->scratch_bytes) return variant->scratch_bytes(call);
    return op->scratch_bytes ? op->scratch_bytes(call) : 0;
}

static op_call call_of(const chooser *c, float *logits, int64_t n, int32_t *ids)
{
    op_call call = {.end = n};
    call.tensors[SAMPLING_LOGITS] = tensor_2d(logits, DTYPE_F32, n, c->vocab_size);
    call.tensors[SAMPLING_IDS] = tensor_1d(ids, DTYPE_I32, n);
    return call;
}

static void set_rows(op_call *call, void *seeds, void *positions, void *temperatures, void *top_ks,
                     void *top_ps, void *min_ps)
{
    const int64_t n = call->end;
    call->tensors[SAMPLING_SEEDS] = tensor_1d(seeds, DTYPE_I64, n);
    call->tensors[SAMPLING_POSITIONS] = tensor_1d(positions, DTYPE_I32, n);
    call->tensors[SAMPLING_TEMPERATURES] = tensor_1d(temperatures, DTYPE_F32, n);
    call->tensors[SAMPLING_TOP_KS] = tensor_1d(top_ks, DTYPE_I32, n);
    call->tensors[SAMPLING_TOP_PS] = tensor_1d(top_ps, DTYPE_F32, n);
    call->tensors[SAMPLING_MIN_PS] = tensor_1d(min_ps, DTYPE_F32, n);
}

qp_status chooser_init(chooser *c, const program *p, thread_pool *pool, uint32_t cpu_features,
                       qp_error *error)
{
    *c = (chooser){.pool = pool,
                   .cpu_features = cpu_features,
                   .vocab_size = p->config.vocab_size,
                   .max_rows = p->capacity.of[AXIS_OUTPUTS]};
    op_call largest = call_of(c, NULL, c->max_rows, NULL);
    set_rows(&largest, NULL, NULL, NULL, NULL, NULL, NULL);
    c->scratch_bytes = (scratch_of(c, &largest) + 63) / 64 * 64;
    size_t scratch = c->scratch_bytes * (size_t)thread_pool_size(pool);
    if (scratch) TRY(buffer_alloc(&c->scratch, scratch, "scratch", error));
    c->row = malloc((size_t)c->vocab_size * sizeof *c->row);
    return c->row ? QP_OK : error_no_memory(error, "a row of logits", (size_t)c->vocab_size * 4);
}

void chooser_free(chooser *c)
{
    buffer_free(&c->scratch);
    free(c->row);
    *c = (chooser){0};
}

static void run(const chooser *c, const op_call *call)
{
    op_kernel *kernel;
    variant_of(c, call, &kernel);
    op_run(op_get(OP_SAMPLING), kernel, call, c->pool, c->scratch.data, c->scratch_bytes);
}

int32_t chooser_choose_one(const chooser *c, const choice_settings *settings)
{
    int32_t id;
    choice_settings s = *settings;
    op_call call = call_of(c, c->row, 1, &id);
    set_rows(&call, &s.seed, &s.position, &s.temperature, &s.top_k, &s.top_p, &s.min_p);
    run(c, &call);
    return id;
}

void chooser_choose(const chooser *c, float *logits, const batch *b, int32_t *ids)
{
    assert(batch_outputs(b) <= c->max_rows);
    op_call call = call_of(c, logits, batch_outputs(b), ids);
    set_rows(&call, b->of[PLAN_SEEDS], b->of[PLAN_SAMPLE_POSITIONS], b->of[PLAN_TEMPERATURES],
             b->of[PLAN_TOP_KS], b->of[PLAN_TOP_PS], b->of[PLAN_MIN_PS]);
    run(c, &call);
}
