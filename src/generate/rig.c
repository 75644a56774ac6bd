/* A model made ready to be timed: see rig.h. */
#include "generate/rig.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Memory that was never written is one page of zeros to the processor's caches; a cache that is in
 * use is not. */
static void touch_caches(rig *r)
{
    memset(r->engine->executor.k_cache.data, 0, r->engine->executor.k_cache.bytes);
    memset(r->engine->executor.v_cache.data, 0, r->engine->executor.v_cache.bytes);
}

qp_status rig_open(const qp_engine_options *options, rig *out, qp_error *error)
{
    *out = (rig){0};
    TRY(qp_engine_open(options, &out->engine, error));
    const plan_options *o = &out->engine->plan.options;
    TRY(page_list_init(&out->pages, (o->context + o->page_size - 1) / o->page_size, error));
    TRY(thread_pool_create(1, &out->alone, error));
    out->alone_executor = out->engine->executor;
    out->alone_executor.pool = out->alone;
    touch_caches(out);
    return QP_OK;
}

void rig_close(rig *r)
{
    if (r->engine) page_list_free(&r->pages, &r->engine->pages);
    qp_engine_close(r->engine);
    thread_pool_destroy(r->alone);
    *r = (rig){0};
}

qp_status rig_fill(rig *r, int64_t tokens, int64_t context, qp_error *error)
{
    qp_engine *e = r->engine;
    const plan_options *o = &e->plan.options;
    if (tokens < 1 || tokens > context || context > o->context || tokens > o->max_tokens)
        return error_set(error, QP_INVALID,
                         "%lld tokens at %lld positions do not fit passes of %lld and a context of "
                         "%lld",
                         (long long)tokens, (long long)context, (long long)o->max_tokens,
                         (long long)o->context);
    TRY(page_list_resize(&r->pages, &e->pages, context, error));
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    if (!ids) return error_no_memory(error, "the tokens", (size_t)tokens * sizeof *ids);
    for (int64_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)((i * 7919 + 1) % e->plan.config.vocab_size);
    batch_clear(&e->batch);
    batch_add(&e->batch, ids, tokens, context - tokens, &r->pages);
    batch_want(&e->batch, tokens - 1);
    free(ids);
    executor_take_inputs(&e->executor, &e->batch);
    executor_take_inputs(&r->alone_executor, &e->batch);
    return QP_OK;
}

static qp_status run_scheduled(void *self, const batch *batch, instruction_timing *timings,
                               qp_error *error)
{
    scheduled *of = self;
    return threads_machine_run(of->machine, batch->sizes.of, timings, error);
}

static void close_scheduled(void *self)
{
    scheduled_free(self);
    free(self);
}

qp_status rig_machine_open(rig *r, const schedule_options *options, bool alone, rig_machine *out,
                           qp_error *error)
{
    *out = (rig_machine){0};
    scheduled *of = calloc(1, sizeof *of);
    if (!of) return error_no_memory(error, "the machine", sizeof *of);
    *out = (rig_machine){
        .schedule = &of->schedule, .self = of, .run = run_scheduled, .close = close_scheduled};
    const executor *x = alone ? &r->alone_executor : &r->engine->executor;
    TRY(scheduled_init(of, x, r->engine->model, options, error));
    size_t places = (size_t)of->schedule.options.workers * (size_t)of->schedule.longest;
    out->memory = calloc(2 * places, sizeof *out->memory);
    if (!out->memory) return error_no_memory(error, "timings", 2 * places);
    out->timings = out->memory;
    out->best = out->memory + places;
    return QP_OK;
}

void rig_machine_close(rig_machine *m)
{
    if (m->close) m->close(m->self);
    free(m->memory);
    *m = (rig_machine){0};
}

qp_status rig_run(rig *r, rig_machine *m, qp_error *error)
{
    uint64_t begin = clock_ns();
    TRY(m->run(m->self, &r->engine->batch, m->timings, error));
    m->last_ns = (double)(clock_ns() - begin);
    if (m->best_ns > 0 && m->best_ns <= m->last_ns) return QP_OK;
    instruction_timing *last = m->timings;
    m->timings = m->best;
    m->best = last;
    m->best_ns = m->last_ns;
    return QP_OK;
}
