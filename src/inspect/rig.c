/* A model made ready to be timed: see rig.h. */
#include "inspect/rig.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

enum { USUAL_CONTEXT_OF_RIG = 1024, USUAL_CHUNK = 512 };

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void on_progress(void *context, const progress *progress)
{
    const rig_options *o = context;
    strbuf line = {0};
    progress_print(progress, &line);
    o->progress(o->progress_context, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

static qp_status build_plan(rig *r, qp_error *error)
{
    const rig_options *o = r->options;
    const model_config *config = model_get_config(r->model);
    plan_options options = plan_default_options(config);
    options.max_tokens = o->chunk ? o->chunk : USUAL_CHUNK;
    options.context = o->context;
    if (options.context == 0) {
        int64_t usual = options.max_tokens;
        if (usual < USUAL_CONTEXT_OF_RIG) usual = USUAL_CONTEXT_OF_RIG;
        options.context = at_most(usual, config->context_length);
    }
    options.fuse = o->fuse;
    if (o->fuse) options.kv_partitions = schedule_kv_partitions(o->threads, config->n_kv_heads);
    TRY(plan_build(config, r->model, &options, &r->plan, error));
    if (r->device.context) return QP_OK; /* its memory is counted there */
    uint64_t need = plan_count_bytes(&r->plan, model_weight_bytes(r->model)).total;
    uint64_t available = buffer_available();
    if (need <= available) return QP_OK;
    return error_set(error, QP_NO_MEMORY, "%s needs %.2f GiB, but %.2f GiB are available", o->model,
                     (double)need / 0x1p30, (double)available / 0x1p30);
}

/* Sizes first, so that what does not fit is refused before synthetic weights are made. */
static qp_status open_model(rig *r, qp_error *error)
{
    const char *name = r->options->model;
    model_options sizes_only = {.sizes_only = true};
    model_options whole = {.pool = r->pool, .progress = &r->progress};
    TRY(model_open(name, &sizes_only, &r->model, error));
    TRY(build_plan(r, error));
    if (model_has_weights(r->model) || r->device.context) return QP_OK;
    progress_begin(&r->progress, "making weights", model_weight_bytes(r->model));
    model_close(r->model);
    r->model = NULL;
    TRY(model_open(name, &whole, &r->model, error));
    progress_end(&r->progress);
    return QP_OK;
}

qp_status rig_open(const rig_options *options, rig *out, qp_error *error)
{
    *out = (rig){.options = options};
    uint32_t features = cpu_features(0);
    if (options->progress)
        out->progress = (progress){.sink = on_progress, .context = (void *)options};
    if (options->device) TRY(cuda_device_open(&out->device, error));
    int threads = out->device.context ? threads_available() : options->threads;
    TRY(thread_pool_create(threads, &out->pool, error));
    TRY(thread_pool_create(1, &out->alone, error));
    TRY(open_model(out, error));
    if (out->device.context)
        TRY(rig_cuda_open(out, error));
    else
        TRY(executor_init(&out->executor, &out->plan, out->model, out->pool, features,
                          &out->progress, error));
    TRY(batch_init(&out->batch, &out->plan, error));
    const plan_options *o = &out->plan.options;
    TRY(page_pool_init(&out->pages, o->n_pages, o->page_size, error));
    TRY(page_list_init(&out->sequence, (o->context + o->page_size - 1) / o->page_size, error));
    out->logits_end = plan_find_step(&out->plan, "lm_head", -1) + 1;
    if (out->device.context) return QP_OK;
    /* Memory that was never written is one page of zeros to the processor's caches; a KV cache in
     * use is not. */
    memset(out->executor.k_cache.data, 0, out->executor.k_cache.bytes);
    memset(out->executor.v_cache.data, 0, out->executor.v_cache.bytes);
    out->alone_executor = out->executor;
    out->alone_executor.pool = out->alone;
    return QP_OK;
}

void rig_close(rig *r)
{
    page_list_free(&r->sequence, &r->pages);
    page_pool_free(&r->pages);
    batch_free(&r->batch);
    rig_cuda_close(r);
    executor_free(&r->executor);
    plan_free(&r->plan);
    model_close(r->model);
    thread_pool_destroy(r->alone);
    thread_pool_destroy(r->pool);
    *r = (rig){0};
}

bool rig_fuses(void)
{
    return op_get(OP_NORM_GATE_UP_SILU)->variants != NULL;
}

qp_status rig_fill(rig *r, int64_t tokens, int64_t context, qp_error *error)
{
    const plan_options *o = &r->plan.options;
    if (tokens < 1 || tokens > context || context > o->context || tokens > o->max_tokens)
        return error_set(error, QP_INVALID,
                         "%lld tokens at %lld positions do not fit passes of %lld and a context of "
                         "%lld",
                         (long long)tokens, (long long)context, (long long)o->max_tokens,
                         (long long)o->context);
    /* Of a launch all passes need pages; the batch is the first's. */
    const int64_t later = r->device.context ? RIG_LAUNCH - 1 : 0;
    if (context - tokens < later)
        return error_set(error, QP_INVALID, "a launch of %lld passes does not fit %lld positions",
                         (long long)later + 1, (long long)context);
    TRY(page_list_resize(&r->sequence, &r->pages, context, error));
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    if (!ids) return error_no_memory(error, "the tokens", (size_t)tokens * sizeof *ids);
    for (int64_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)((i * 7919 + 1) % r->plan.config.vocab_size);
    batch_clear(&r->batch);
    batch_add(&r->batch, ids, tokens, context - tokens - later, r->sequence.pages);
    if (r->device.context)
        memcpy(r->batch.of[PLAN_KV_INDICES], r->sequence.pages,
               (size_t)r->sequence.count * sizeof *r->sequence.pages);
    batch_want(&r->batch, tokens - 1);
    free(ids);
    if (r->device.context) return QP_OK; /* its inputs are copied by each launch */
    executor_take_inputs(&r->executor, &r->batch);
    executor_take_inputs(&r->alone_executor, &r->batch);
    return QP_OK;
}

static qp_status run_scheduled(void *self, const batch *batch, instruction_timing *timings,
                               double *ns, qp_error *error)
{
    uint64_t begin = clock_ns();
    TRY(scheduled_run(self, batch, (scheduled_record){.timings = timings}, error));
    *ns = (double)(clock_ns() - begin);
    return QP_OK;
}

static void close_scheduled(void *self)
{
    scheduled_free(self);
    free(self);
}

static size_t places_of(const schedule *s)
{
    return (size_t)s->options.workers * (size_t)s->longest;
}

static qp_status open_scheduled(rig *r, const schedule_options *options, bool alone,
                                rig_machine *out, qp_error *error)
{
    scheduled *of = calloc(1, sizeof *of);
    if (!of) return error_no_memory(error, "the machine", sizeof *of);
    *out = (rig_machine){
        .schedule = &of->schedule, .self = of, .run = run_scheduled, .close = close_scheduled};
    const executor *x = alone ? &r->alone_executor : &r->executor;
    return scheduled_init(of, x, options, error);
}

qp_status rig_machine_open(rig *r, const schedule_options *options, bool alone, rig_machine *out,
                           qp_error *error)
{
    *out = (rig_machine){0};
    if (r->device.context)
        TRY(rig_cuda_machine_open(r, options, out, error));
    else
        TRY(open_scheduled(r, options, alone, out, error));
    size_t places = places_of(out->schedule);
    out->memory = calloc(2 * places, sizeof *out->memory);
    out->least = calloc(2 * places, sizeof *out->least);
    if (!out->memory || !out->least) return error_no_memory(error, "timings", 2 * places);
    out->sum = out->least + places;
    out->timings = out->memory;
    out->best = out->memory + places;
    return QP_OK;
}

void rig_machine_close(rig_machine *m)
{
    if (m->close) m->close(m->self);
    free(m->memory);
    free(m->least);
    *m = (rig_machine){0};
}

/* Another program that had a processor for a while disturbed some instructions of the pass, not
 * all. */
static void take_least(rig_machine *m)
{
    const schedule *s = m->schedule;
    for (size_t i = 0; i < places_of(s); i++) {
        double ns = (double)(m->timings[i].end - m->timings[i].work);
        if (m->passes == 0 || ns < m->least[i]) m->least[i] = ns;
        m->sum[i] += ns;
    }
}

qp_status rig_warm_up(rig *r, rig_machine *m, qp_error *error)
{
    double ns;
    return m->run(m->self, &r->batch, m->timings, &ns, error);
}

qp_status rig_run(rig *r, rig_machine *m, qp_error *error)
{
    TRY(m->run(m->self, &r->batch, m->timings, &m->last_ns, error));
    take_least(m);
    m->last = m->timings;
    if (m->passes++ > 0 && m->best_ns <= m->last_ns) return QP_OK;
    instruction_timing *last = m->timings;
    m->timings = m->best;
    m->best = last;
    m->best_ns = m->last_ns;
    return QP_OK;
}
