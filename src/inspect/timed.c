/* A model that is ready to be timed: see timed.h. */
#include "inspect/timed.h"

#include "base/cpu.h"
#include "base/platform.h"
#include "engine/open.h"
#include "schedule/build.h"
#include "lower/lower.h"

#include <stdlib.h>
#include <string.h>

enum {
    USUAL_TIMED_CONTEXT = 1024,
    USUAL_CHUNK = 512,
    USUAL_RUN_CONTEXT = 8192,
    LAUNCH = 9, /* passes of the megakernel in a run; the first one begins with an empty ring and is
                   not counted */
};

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void on_progress(void *context, const progress *progress)
{
    const timed_options *o = context;
    strbuf line = {0};
    progress_print(progress, &line);
    o->progress(o->progress_context, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

/* ---- the model ----------------------------------------------------------------------------- */

/* A plan that is good for timing: a cache of usual size, and fused operators with a part of a KV
 * head for each worker. */
static void plan_for_timing(const timed_options *o, const model_config *config, plan_options *out)
{
    plan_options options = *out;
    options.max_tokens = o->chunk ? o->chunk : USUAL_CHUNK;
    options.context = o->context;
    if (options.context == 0) {
        int64_t usual = options.max_tokens;
        if (usual < USUAL_TIMED_CONTEXT) usual = USUAL_TIMED_CONTEXT;
        options.context = at_most(usual, config_usual_context(config));
    }
    options.fuse = o->fuse;
    if (options.fuse)
        options.kv_partitions = schedule_kv_partitions(o->threads, config->n_kv_heads);
    *out = options;
}

static void plan_as_run(const timed_options *o, const model_config *config, plan_options *out)
{
    out->context =
        o->context ? o->context : at_most(config_usual_context(config), USUAL_RUN_CONTEXT);
    if (o->chunk) out->max_tokens = o->chunk;
    out->fuse = o->fuse;
    out->kv_partitions = o->kv_partitions;
}

static qp_status build_plan(timed_model *m, qp_error *error)
{
    const timed_options *o = m->options;
    const model_config *config = model_get_config(m->model);
    plan_options options = plan_default_options(config);
    (o->as_run ? plan_as_run : plan_for_timing)(o, config, &options);
    options.target = m->device.context ? PLAN_FOR_ANY : PLAN_FOR_CPU;
    TRY(lower_build(config, m->model, &options, &m->program, error));
    if (m->device.context) return QP_OK; /* its memory is counted there */
    uint64_t need = program_count_bytes(&m->program, model_weight_bytes(m->model)).total;
    uint64_t available = platform_free_memory();
    if (need <= available) return QP_OK;
    return error_set(error, QP_NO_MEMORY, "%s needs %.2f GiB, but %.2f GiB are available", o->model,
                     (double)need / 0x1p30, (double)available / 0x1p30);
}

/* Sizes are computed first, so that a model that does not fit is refused before its weights are
 * made. */
static qp_status open_model(timed_model *m, qp_error *error)
{
    const char *name = m->options->model;
    const bool on_gpu = m->device.context != NULL;
    model_options sizes_only = {.sizes_only = true, .fp8_as_bf16 = on_gpu};
    model_options whole = {.fp8_as_bf16 = on_gpu, .pool = m->pool, .progress = &m->progress};
    TRY(model_open(name, &sizes_only, &m->model, error));
    TRY(build_plan(m, error));
    if (model_has_weights(m->model) || m->device.context) return QP_OK;
    progress_begin(&m->progress, "making weights", model_weight_bytes(m->model));
    model_close(m->model);
    m->model = NULL;
    TRY(model_open(name, &whole, &m->model, error));
    program_attach(&m->program, m->model);
    progress_end(&m->progress);
    return QP_OK;
}

/* Kernels are those that run by default. */
static machine_setup setup_of(timed_model *m, const schedule_options *schedule, bool alone)
{
    const uint32_t features = cpu_features(0);
    return (machine_setup){.program = &m->program,
                           .pool = alone ? m->alone : m->pool,
                           .cpu_features = features | engine_usual_activations(m->model, features),
                           .progress = &m->progress,
                           .schedule = schedule,
                           .device = m->device.context ? &m->device : NULL,
                           .over = schedule ? &m->memory : NULL};
}

/* Writes the cache once: memory that was never written is mapped to one page of zeros and stays in
 * the processor's caches, unlike a cache in use. */
static qp_status write_caches(timed_model *m, qp_error *error)
{
    const size_t bytes = m->program.tensors[PLAN_K_CACHE].bytes;
    void *zeros = calloc(1, bytes);
    if (!zeros) return error_no_memory(error, "the KV cache", bytes);
    qp_status status = QP_OK;
    for (int64_t layer = 0; layer < m->program.config.n_layers && status == QP_OK; layer++) {
        status = machine_write(&m->memory, PLAN_K_CACHE, layer, zeros, bytes, error);
        if (status == QP_OK)
            status = machine_write(&m->memory, PLAN_V_CACHE, layer, zeros, bytes, error);
    }
    free(zeros);
    return status;
}

qp_status timed_open(const timed_options *options, timed_model *out, qp_error *error)
{
    *out = (timed_model){.options = options};
    cpu_features(0); /* asks for AMX tiles before threads start */
    if (options->progress)
        out->progress = (progress){.sink = on_progress, .context = (void *)options};
    if (options->device) TRY(cuda_device_open(&out->device, error));
    const bool gpu = out->device.context != NULL;
    TRY(thread_pool_create(gpu ? threads_available() : options->threads, &out->pool, error));
    TRY(thread_pool_create(1, &out->alone, error));
    TRY(open_model(out, error));
    const machine_setup setup = setup_of(out, NULL, false);
    TRY(machine_open(gpu ? &machine_cuda : &machine_operators, &setup, &out->memory, error));
    TRY(batch_init(&out->batch, &out->program, error));
    const size_t n_pages = (size_t)out->program.options.n_pages;
    out->pages = malloc(n_pages * sizeof *out->pages);
    if (!out->pages) return error_no_memory(error, "the list of pages", n_pages);
    for (size_t i = 0; i < n_pages; i++)
        out->pages[i] = (int32_t)i;
    out->passes = gpu ? LAUNCH : 1;
    return gpu ? QP_OK : write_caches(out, error);
}

void timed_close(timed_model *m)
{
    free(m->pages);
    batch_free(&m->batch);
    machine_close(&m->memory);
    if (m->device.driver) cuda_device_close(&m->device);
    program_free(&m->program);
    model_close(m->model);
    thread_pool_destroy(m->alone);
    thread_pool_destroy(m->pool);
    *m = (timed_model){0};
}

bool timed_fuses(void)
{
    return op_get(OP_NORM_GATE_UP_SILU)->variants != NULL;
}

qp_status timed_fill(timed_model *m, int64_t tokens, int64_t context, qp_error *error)
{
    const plan_options *o = &m->program.options;
    if (tokens < 1 || tokens > context || context > o->context || tokens > o->max_tokens)
        return error_set(error, QP_INVALID,
                         "%lld tokens at %lld positions do not fit passes of %lld and a context of "
                         "%lld",
                         (long long)tokens, (long long)context, (long long)o->max_tokens,
                         (long long)o->context);
    const int64_t later = m->passes - 1;
    if (context - tokens < later)
        return error_set(error, QP_INVALID, "a launch of %lld passes does not fit %lld positions",
                         (long long)later + 1, (long long)context);
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    if (!ids) return error_no_memory(error, "the tokens", (size_t)tokens * sizeof *ids);
    for (int64_t i = 0; i < tokens; i++)
        ids[i] = (int32_t)((i * 7919 + 1) % m->program.config.vocab_size);
    batch_clear(&m->batch);
    if (later > 0)
        batch_add_ahead(&m->batch, ids[0], context - 1 - later, context, m->pages);
    else
        batch_add(&m->batch, ids, tokens, context - tokens, m->pages);
    batch_want(&m->batch, tokens - 1);
    free(ids);
    return QP_OK;
}

/* ---- machines ------------------------------------------------------------------------------ */

static size_t places_of(const schedule *s)
{
    return (size_t)s->options.workers * (size_t)s->longest;
}

static qp_status take_memory(const timed_model *m, timed_machine *t, qp_error *error)
{
    const size_t places = places_of(t->schedule), passes = (size_t)m->passes;
    t->memory = calloc((passes + 2) * places, sizeof *t->memory);
    t->least = calloc(2 * places, sizeof *t->least);
    t->records = calloc(passes, sizeof *t->records);
    t->tokens = calloc(passes, sizeof *t->tokens);
    if (!t->memory || !t->least || !t->records || !t->tokens)
        return error_no_memory(error, "timings", (passes + 2) * places);
    t->timings = t->memory;
    t->last = t->memory + passes * places;
    t->best = t->last + places;
    t->sum = t->least + places;
    return QP_OK;
}

qp_status timed_machine_open(timed_model *m, const schedule_options *options, const char *file,
                             bool alone, timed_machine *out, qp_error *error)
{
    const bool gpu = m->device.context != NULL;
    *out = (timed_machine){0};
    schedule_options chosen = *options;
    if (gpu) chosen.workers = m->options->threads;
    chosen.unshared = true;
    machine_setup setup = setup_of(m, &chosen, alone);
    setup.schedule_file = file;
    TRY(machine_open(gpu ? &machine_megakernel : &machine_threads, &setup, &out->of, error));
    out->schedule = machine_schedule(&out->of);
    return take_memory(m, out, error);
}

void timed_machine_close(timed_machine *t)
{
    machine_close(&t->of);
    free(t->memory);
    free(t->least);
    free(t->records);
    free(t->tokens);
    *t = (timed_machine){0};
}

static double length_of(const machine_record *record)
{
    return (double)(record->end - record->begin);
}

/* Copies the quickest pass of a run to t->last. */
static void take_quickest(const timed_model *m, timed_machine *t)
{
    const size_t places = places_of(t->schedule);
    const int first = m->passes > 1;
    int best = first;
    for (int i = first; i < m->passes; i++)
        if (length_of(&t->records[i]) < length_of(&t->records[best])) best = i;
    memcpy(t->last, t->records[best].timings, places * sizeof *t->last);
    t->last_ns = length_of(&t->records[best]);
}

qp_status timed_warm_up(timed_model *m, timed_machine *t, qp_error *error)
{
    const size_t places = places_of(t->schedule);
    const machine_request request = {.batch = &m->batch,
                                     .passes = m->passes,
                                     .choice = m->passes > 1 ? MACHINE_LIKELIEST : MACHINE_LOGITS,
                                     .tokens = t->tokens,
                                     .records = t->records,
                                     .n_records = m->passes};
    for (int i = 0; i < m->passes; i++)
        t->records[i] = (machine_record){.timings = t->timings + (size_t)i * places};
    TRY(machine_time(&t->of, &(machine_timing){.max_passes = (size_t)m->passes}, error));
    TRY(machine_pass(&t->of, &request, error));
    take_quickest(m, t);
    return QP_OK;
}

/* Another program that had a processor for a while disturbed some instructions of the pass, but not
 * all. */
static void take_least(timed_machine *t)
{
    for (size_t i = 0; i < places_of(t->schedule); i++) {
        double ns = (double)(t->last[i].end - t->last[i].work);
        if (t->passes == 0 || ns < t->least[i]) t->least[i] = ns;
        t->sum[i] += ns;
    }
}

qp_status timed_run(timed_model *m, timed_machine *t, qp_error *error)
{
    TRY(timed_warm_up(m, t, error));
    take_least(t);
    if (t->passes++ > 0 && t->best_ns <= t->last_ns) return QP_OK;
    memcpy(t->best, t->last, places_of(t->schedule) * sizeof *t->best);
    t->best_ns = t->last_ns;
    return QP_OK;
}
