/* What the schedule suites share: a small model with its plan, a batch, and memory to run it in. */
#ifndef QUIPU_TESTS_SCHEDULE_TEST_H
#define QUIPU_TESTS_SCHEDULE_TEST_H

#include "test.h"

#include "vm/batch.h"
#include "engine/pages.h"
#include "vm/execute.h"
#include "schedule/build.h"
#include "schedule/verify.h"
#include "vm/serial.h"

typedef struct bench {
    model *model;
    plan plan;
    executor executor; /* with features 0 references: the oracle; lends its RoPE table */
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
    o.candidates = 8;
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
    assert_ok(plan_build(model_get_config(b->model), &small, &b->plan, &error));
    assert_ok(executor_init(&b->executor, &b->plan, b->model, NULL, features, NULL, &error));
    assert_ok(batch_init(&b->batch, &b->plan, &error));
    assert_ok(page_pool_init(&b->pages, b->plan.options.n_pages, 4, &error));
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
    executor_free(&b->executor);
    plan_free(&b->plan);
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
                (int32_t)((37 * (b->past[i] + t) + 101 * i + 3) % b->plan.config.vocab_size);
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

/* Memory of a machine beside the executor's. */
typedef struct machine_memory {
    schedule_memory bound;
    const void **weights;
    void *inputs[PLAN_TENSOR_COUNT];
    size_t cache_bytes;
} machine_memory;

static inline void memory_open(machine_memory *m, const bench *b, const schedule *s)
{
    m->cache_bytes = b->plan.tensors[PLAN_K_CACHE].bytes * (size_t)b->plan.config.n_layers;
    m->weights = calloc((size_t)s->n_weights + 1, sizeof *m->weights);
    for (int i = 0; i < s->n_weights; i++) {
        const schedule_weight *w = &s->weights[i];
        const model_weight *found = model_get_weight(b->model, (weight_slot)w->slot, w->layer);
        m->weights[i] = w->bias ? found->bias.data : found->weight.data;
    }
    for (int id = 0; id < PLAN_TENSOR_COUNT; id++) {
        bool sums = b->plan.tensors[id].kind == PLAN_CARRIED;
        m->inputs[id] = sums ? calloc(1, b->plan.tensors[id].bytes) : b->batch.of[id];
    }
    m->bound = (schedule_memory){.arena = malloc(b->plan.arena_bytes),
                                 .inputs = m->inputs,
                                 .rope_table = b->executor.rope_table.data,
                                 .k_cache = calloc(1, m->cache_bytes),
                                 .v_cache = calloc(1, m->cache_bytes),
                                 .weights = m->weights};
    memset(m->bound.arena, 0xab, b->plan.arena_bytes);
}

/* A pass begins: the sums that the last one has cleared are this one's. */
static inline void memory_begin_pass(machine_memory *m)
{
    void *cleared = m->inputs[PLAN_SUMS_NEXT];
    m->inputs[PLAN_SUMS_NEXT] = m->inputs[PLAN_SUMS];
    m->inputs[PLAN_SUMS] = cleared;
}

static inline void memory_close(machine_memory *m)
{
    free(m->inputs[PLAN_SUMS]);
    free(m->inputs[PLAN_SUMS_NEXT]);
    free(m->bound.arena);
    free(m->bound.k_cache);
    free(m->bound.v_cache);
    free(m->weights);
}

/* Whether every output and the caches are the oracle's, to the bit. */
static inline bool same_outputs(const bench *b, const machine_memory *m)
{
    static const plan_tensor_id outputs[] = {PLAN_LOGITS, PLAN_TOP_VALUES, PLAN_TOP_IDS, PLAN_NEXT};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const plan_tensor *t = &b->plan.tensors[outputs[i]];
        size_t bytes =
            t->bytes / (size_t)b->plan.capacity.of[AXIS_OUTPUTS] * (size_t)batch_outputs(&b->batch);
        const char *theirs = b->executor.memory.data[outputs[i]];
        if (memcmp(theirs, (char *)m->bound.arena + t->offset, bytes) != 0) return false;
    }
    return memcmp(b->executor.k_cache.data, m->bound.k_cache, m->cache_bytes) == 0 &&
           memcmp(b->executor.v_cache.data, m->bound.v_cache, m->cache_bytes) == 0;
}

#endif
