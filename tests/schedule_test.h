/* What the schedule suites share: a small model with its plan, a batch, and memory for a pass. */
#pragma once

#include "test.h"

#include "base/checked.h"
#include "vm/batch.h"
#include "engine/pages.h"
#include "lower/lower.h"
#include "schedule/build.h"
#include "schedule/verify.h"
#include "vm/machine.h"
#include "vm/serial.h"

typedef struct bench {
    model *model;
    program program;
    machine machine; /* `reference`: the oracle, or `operators`; lends its RoPE table */
    batch batch;
    page_pool pages;
    page_list lists[2];
    int64_t past[2];
} bench;

/* BENCH_SUMS + parts: of a plan of sums. */
enum { BENCH_CONTEXT = 32, BENCH_TOKENS = 256, BENCH_SUMS = 1000 };

static inline plan_options small_options(const model_config *config)
{
    plan_options o = plan_default_options(config);
    o.max_tokens = 12;
    o.max_sequences = o.max_outputs = 2;
    o.context = BENCH_CONTEXT;
    o.page_size = 4;
    o.kv_type = DTYPE_F32;
    return o;
}

/* `parts`: of a fused plan; 0: not fused. A context of 32 is one part whatever it says. */
static inline void bench_open_features(bench *b, const char *path, int64_t parts, int64_t context,
                                       uint32_t features)
{
    qp_error error;
    model_options options = {0};
    *b = (bench){0};
    assert_ok(model_open(path, &options, &b->model, &error));
    plan_options small = small_options(model_get_config(b->model));
    small.fuse = parts > 0;
    small.sums = parts > BENCH_SUMS;
    small.kv_partitions = parts % BENCH_SUMS;
    small.context = context;
    if (context > BENCH_CONTEXT) small.max_tokens = context;
    assert_ok(lower_build(model_get_config(b->model), b->model, &small, &b->program, &error));
    const machine_setup setup = {.program = &b->program, .cpu_features = features};
    const machine_type *type = features ? &machine_operators : &machine_reference;
    assert_ok(machine_open(type, &setup, &b->machine, &error));
    assert_ok(batch_init(&b->batch, &b->program, &error));
    assert_ok(page_pool_init(&b->pages, b->program.options.n_pages, 4, &error));
    for (int i = 0; i < 2; i++)
        assert_ok(page_list_init(&b->lists[i], context / 4, &error));
}

static inline void bench_open_parts(bench *b, const char *path, int64_t parts, int64_t context)
{
    bench_open_features(b, path, parts, context, 0);
}

static inline void bench_open(bench *b, const char *path)
{
    bench_open_parts(b, path, 0, BENCH_CONTEXT);
}

static inline void bench_close(bench *b)
{
    for (int i = 0; i < 2; i++)
        page_list_free(&b->lists[i], &b->pages);
    page_pool_free(&b->pages);
    batch_free(&b->batch);
    machine_close(&b->machine);
    program_free(&b->program);
    model_close(b->model);
}

/* Fills the batch with `counts` new tokens of each of the two sequences. */
static inline void bench_fill(bench *b, int64_t first, int64_t second)
{
    qp_error error;
    const int64_t counts[2] = {first, second};
    batch_clear(&b->batch);
    for (int i = 0; i < 2; i++) {
        if (counts[i] == 0) continue;
        int32_t tokens[BENCH_TOKENS];
        assert_true(counts[i] <= BENCH_TOKENS);
        for (int64_t t = 0; t < counts[i]; t++)
            tokens[t] =
                (int32_t)((37 * (b->past[i] + t) + 101 * i + 3) % b->program.config.vocab_size);
        assert_ok(page_list_resize(&b->lists[i], &b->pages, b->past[i] + counts[i], &error));
        batch_add(&b->batch, tokens, counts[i], b->past[i], b->lists[i].pages);
        batch_want(&b->batch, batch_tokens(&b->batch) - 1);
        b->past[i] += counts[i];
    }
    for (int64_t i = 0; i < batch_outputs(&b->batch); i++) {
        ((int64_t *)b->batch.of[PLAN_SEEDS])[i] = 5 + i;
        batch_i32(&b->batch, PLAN_SAMPLE_POSITIONS)[i] = (int32_t)i;
        ((float *)b->batch.of[PLAN_TEMPERATURES])[i] = 1;
        ((float *)b->batch.of[PLAN_TOP_PS])[i] = 1;
    }
}

/* All steps of the plan over the batch. */
static inline void bench_run(const bench *b)
{
    qp_error error;
    const machine_request request = {.batch = &b->batch, .last = b->program.n_steps};
    assert_ok(machine_pass(&b->machine, &request, &error));
}

static inline void bench_clear_caches(const bench *b)
{
    qp_error error;
    const size_t bytes = b->program.tensors[PLAN_K_CACHE].bytes;
    void *zeros = calloc(1, bytes);
    for (int64_t layer = 0; layer < b->program.config.n_layers; layer++) {
        assert_ok(machine_write(&b->machine, PLAN_K_CACHE, layer, zeros, bytes, &error));
        assert_ok(machine_write(&b->machine, PLAN_V_CACHE, layer, zeros, bytes, &error));
    }
    free(zeros);
}

/* The first `bytes` of a tensor that the machine has, to free(). */
static inline void *bench_read(const bench *b, plan_tensor_id id, int64_t layer, size_t bytes)
{
    qp_error error;
    void *data = malloc(bytes + 1);
    assert_non_null(data);
    assert_ok(machine_read(&b->machine, id, layer, data, bytes, &error));
    return data;
}

/* Whether the first `bytes` of the tensor are those at `data`. */
static inline bool bench_has(const bench *b, plan_tensor_id id, int64_t layer, const void *data,
                             size_t bytes)
{
    void *own = bench_read(b, id, layer, bytes);
    const bool same = memcmp(own, data, bytes) == 0;
    free(own);
    return same;
}

/* Memory of a schedule beside the machine's. */
typedef struct machine_memory {
    program_memory bound;
    const void **weights;
    void *arena;
    size_t cache_bytes;
} machine_memory;

static inline void memory_open(machine_memory *m, const bench *b)
{
    m->cache_bytes = b->program.tensors[PLAN_K_CACHE].bytes * (size_t)b->program.config.n_layers;
    m->weights = calloc((size_t)b->program.n_weights + 1, sizeof *m->weights);
    for (int i = 0; i < b->program.n_weights; i++)
        m->weights[i] = b->program.weights[i].whole.data;
    m->arena = malloc(b->program.arena_bytes);
    memset(m->arena, 0xab, b->program.arena_bytes);
    m->bound = (program_memory){.cache_layer_bytes = b->program.tensors[PLAN_K_CACHE].bytes,
                                .weights = m->weights};
    for (int id = 0; id < b->program.n_tensors; id++) {
        const plan_tensor *t = &b->program.tensors[id];
        const bool own = t->kind == PLAN_CARRIED || t->kind == PLAN_STATE;
        m->bound.data[id] = own                     ? calloc(1, t->bytes)
                            : t->kind == PLAN_CACHE ? calloc(1, m->cache_bytes)
                            : t->kind == PLAN_TABLE ? bench_read(b, PLAN_ROPE_TABLE, -1, t->bytes)
                            : t->kind == PLAN_INPUT ? b->batch.of[id]
                                                    : (char *)m->arena + t->offset;
    }
}

/* A pass begins: the sums that the last one has cleared are this one's. */
static inline void memory_begin_pass(machine_memory *m)
{
    void *cleared = m->bound.data[PLAN_SUMS_NEXT];
    m->bound.data[PLAN_SUMS_NEXT] = m->bound.data[PLAN_SUMS];
    m->bound.data[PLAN_SUMS] = cleared;
}

static inline void memory_close(machine_memory *m, const bench *b)
{
    for (int id = 0; id < b->program.n_tensors; id++) {
        plan_kind kind = b->program.tensors[id].kind;
        if (kind == PLAN_CARRIED || kind == PLAN_STATE || kind == PLAN_CACHE || kind == PLAN_TABLE)
            free(m->bound.data[id]);
    }
    free(m->arena);
    free(m->weights);
}

/* Whether every output and the caches are the oracle's, to the bit. */
static inline bool same_outputs(const bench *b, const machine_memory *m)
{
    static const plan_tensor_id outputs[] = {PLAN_LOGITS, PLAN_NEXT};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const plan_tensor *t = &b->program.tensors[outputs[i]];
        size_t bytes = t->bytes / (size_t)b->program.capacity.of[AXIS_OUTPUTS] *
                       (size_t)batch_outputs(&b->batch);
        if (!bench_has(b, outputs[i], -1, m->bound.data[outputs[i]], bytes)) return false;
    }
    const size_t layer_bytes = b->program.tensors[PLAN_K_CACHE].bytes;
    for (int64_t layer = 0; layer < b->program.config.n_layers; layer++) {
        const size_t at = (size_t)layer * layer_bytes;
        if (!bench_has(b, PLAN_K_CACHE, layer, (char *)m->bound.data[PLAN_K_CACHE] + at,
                       layer_bytes) ||
            !bench_has(b, PLAN_V_CACHE, layer, (char *)m->bound.data[PLAN_V_CACHE] + at,
                       layer_bytes))
            return false;
    }
    return true;
}

/* The bytes of scratch that references need at the schedule's capacity. */
static inline size_t serial_scratch_bytes(const schedule *s)
{
    size_t most = 0;
    for (int node = 0; node < s->n_nodes; node++) {
        const op_info *op = op_get(s->program->nodes[node].op);
        op_call call;
        program_bind(s->program, node, NULL, s->program->capacity.of, &call);
        size_t bytes = op->scratch_bytes ? op->scratch_bytes(&call) : 0;
        if (bytes > most) most = bytes;
    }
    return round_up(most, 64);
}
