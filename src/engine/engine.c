/* The engine: a model, its plan, and all memory that running it takes. */
#include "engine/engine.h"

#include "base/cpu.h"
#include "vm/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_CONTEXT = 8192,
    DEFAULT_CHUNK = 512,
    DEVICE_CHUNK = 2048, /* a GPU wants more at once */
    DEFAULT_PAGE_SIZE = 16
};

static void say(const qp_engine *e, qp_log_level level, const char *message)
{
    if (e->log) e->log(e->log_context, level, message);
}

static void on_progress(void *context, const progress *progress)
{
    const qp_engine *e = context;
    strbuf line = {0};
    progress_print(progress, &line);
    e->tell_progress(e->progress_context, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

static qp_status choose_options(const qp_engine_options *given, const model_config *config,
                                int64_t chunk, plan_options *out, qp_error *error)
{
    *out = plan_default_options(config);
    int64_t usual =
        config->context_length < DEFAULT_CONTEXT ? config->context_length : DEFAULT_CONTEXT;
    out->context = given->context ? given->context : usual;
    out->max_sequences = given->max_sessions ? given->max_sessions : 1;
    out->max_tokens = given->chunk ? given->chunk : chunk;
    if (out->max_tokens > 0 && out->max_tokens < out->max_sequences)
        out->max_tokens = out->max_sequences;
    out->max_outputs = given->max_outputs ? given->max_outputs : out->max_sequences;
    out->page_size = given->page_size ? given->page_size : DEFAULT_PAGE_SIZE;
    out->fuse = given->fuse;
    if (given->kv_type) out->kv_type = dtype_from_name(given->kv_type);
    if (out->kv_type == DTYPE_COUNT)
        return error_set(error, QP_INVALID, "the KV cache must be F32, F16 or BF16, found \"%s\"",
                         given->kv_type);
    return QP_OK;
}

static bool is_named(const char *choice, const char *name)
{
    return choice && strcmp(choice, name) == 0;
}

static bool is_automatic(const char *choice)
{
    return !choice || strcmp(choice, "auto") == 0;
}

/* CPU features that kernels may use; none for the references. */
static qp_status choose_features(const qp_engine_options *options, uint32_t *features,
                                 qp_error *error)
{
    uint32_t off;
    TRY(cpu_features_parse(options->cpu_mask ? options->cpu_mask : "", &off, error));
    const char *exec = options->exec;
    *features = is_named(exec, "ref") ? 0 : cpu_features(off);
    if (is_automatic(exec) || is_named(exec, "ref") || is_named(exec, "ops") ||
        is_named(exec, "threads") || is_named(exec, "serial") || is_named(exec, "mk"))
        return QP_OK;
    return error_set(error, QP_INVALID,
                     "exec must be auto, threads, serial, ops, ref or mk, found \"%s\"", exec);
}

/* Opens the GPU if it is asked for, or if nobody minds and there is one. */
static qp_status choose_device(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    const char *device = options->device, *exec = options->exec;
    bool of_cpu = is_named(exec, "threads") || is_named(exec, "serial") || is_named(exec, "ref");
    if (is_named(exec, "mk") && (!device || is_named(device, "cpu")))
        return error_set(error, QP_INVALID, "--exec mk runs on a GPU: with --device cuda");
    if (!device || is_named(device, "cpu")) return QP_OK;
    if (is_named(device, "cuda")) {
        if (of_cpu)
            return error_set(error, QP_INVALID,
                             "--exec %s runs on the CPU; with --device cuda it is mk, ops or auto",
                             exec);
        return cuda_device_open(&e->device, error);
    }
    if (!is_named(device, "auto"))
        return error_set(error, QP_INVALID, "the device must be auto, cpu or cuda, found \"%s\"",
                         device);
    qp_error why = {0};
    char message[QP_ERROR_SIZE + 64];
    if (of_cpu)
        snprintf(message, sizeof message, "running on the CPU, as --exec %s does", exec);
    else if (cuda_device_open(&e->device, &why) == QP_OK)
        snprintf(message, sizeof message, "running on %s; --device cpu does not", e->device.name);
    else if (is_named(exec, "mk"))
        return error_set(error, why.status, "--exec mk runs on a GPU, but %s", why.message);
    else
        snprintf(message, sizeof message, "running on the CPU: %s", why.message);
    if (!e->device.context) cuda_device_close(&e->device);
    say(e, e->device.context ? QP_LOG_NOTICE : QP_LOG_INFO, message);
    return QP_OK;
}

/* A run that does not fit is refused before any weight is read. Weights count as the kernels keep
 * them. */
static qp_status check_memory(const qp_engine *e, uint32_t features, qp_error *error)
{
    executor sizes;
    qp_status status = executor_choose(&sizes, &e->plan, e->model, features, error);
    uint64_t weights = status == QP_OK ? executor_weight_bytes(&sizes) : 0;
    executor_free(&sizes);
    TRY(status);
    plan_bytes need = plan_count_bytes(&e->plan, weights);
    uint64_t available = buffer_available();
    if (need.total <= available) return QP_OK;
    const double gib = 1 << 30;
    int64_t fits = plan_largest_context(&e->plan.config, &e->plan.options, need.weights, available);
    return error_set(
        error, QP_NO_MEMORY,
        "%s needs %.2f GiB (weights %.2f, KV cache %.2f for %lld times %lld positions), but %.2f "
        "GiB are available; %s%lld",
        model_path(e->model), (double)need.total / gib, (double)need.weights / gib,
        (double)need.kv_cache / gib, (long long)e->plan.options.max_sequences,
        (long long)e->plan.options.context, (double)available / gib,
        fits > 0 ? "the largest context that fits is " : "no context fits, not even one page of ",
        (long long)(fits > 0 ? fits : e->plan.options.page_size));
}

static void warn_of_context(const qp_engine *e)
{
    int64_t asked = e->plan.options.context, trained = e->plan.config.context_length;
    if (asked <= trained || e->plan.config.rope.scaling == ROPE_DYNAMIC) return;
    char message[160];
    snprintf(message, sizeof message,
             "a context of %lld goes past the %lld positions the model was trained for",
             (long long)asked, (long long)trained);
    say(e, QP_LOG_WARNING, message);
}

/* Sizes first, so that what does not fit is refused before weights are made; for a GPU they are
 * made on their way. */
static qp_status open_model(qp_engine *e, const qp_engine_options *options, uint32_t features,
                            qp_error *error)
{
    model_options sizes_only = {.sizes_only = true};
    TRY(model_open(options->model, &sizes_only, &e->model, error));
    plan_options chosen;
    TRY(choose_options(options, model_get_config(e->model),
                       e->device.context ? DEVICE_CHUNK : DEFAULT_CHUNK, &chosen, error));
    TRY(plan_build(model_get_config(e->model), e->model, &chosen, &e->plan, error));
    if (e->device.context) return QP_OK;
    TRY(check_memory(e, features, error));
    if (model_has_weights(e->model)) return QP_OK;
    uint64_t weight_bytes = model_weight_bytes(e->model);
    model_close(e->model);
    e->model = NULL;
    model_options whole = {.discardable = true, .pool = e->pool, .progress = &e->progress};
    progress_begin(&e->progress, "making weights", weight_bytes);
    TRY(model_open(options->model, &whole, &e->model, error));
    progress_end(&e->progress);
    return QP_OK;
}

/* The megakernel, unless operators are asked for; what it does not do is run as operators. */
static qp_status open_mega(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    if (is_named(options->exec, "ops")) return QP_OK;
    const cuda_mega_options how = {.n_blocks = options->workers};
    qp_status status = cuda_mega_init(&e->mega, &e->cuda, &how, error);
    if (status == QP_NO_MEMORY && !is_named(options->exec, "mk")) {
        cuda_mega_free(&e->mega);
        say(e, QP_LOG_NOTICE,
            "the GPU has no room for the megakernel's tables: running operator by operator");
        return QP_OK;
    }
    if (status == QP_OK && e->mega.kernel && !e->mega.can_choose)
        say(e, QP_LOG_INFO,
            "so few of the megakernel's blocks have no room to choose tokens in: the CPU chooses "
            "all that are not just the likeliest");
    if (status != QP_OK || e->mega.kernel) return status;
    if (is_named(options->exec, "mk"))
        return error_set(error, QP_UNSUPPORTED, "%s; --exec ops runs any model", e->mega.why_not);
    if (options->workers)
        return error_set(error, QP_UNSUPPORTED, "%s, so that --workers %d has no meaning",
                         e->mega.why_not, options->workers);
    say(e, QP_LOG_INFO, e->mega.why_not);
    return QP_OK;
}

/* Workers are the megakernel's blocks, all of which run at once. */
static qp_status check_workers(const qp_engine *e, const qp_engine_options *options,
                               qp_error *error)
{
    const int workers = options->workers, most = e->device.n_multiprocessors;
    if (workers == 0) return QP_OK;
    if (!e->device.context || is_named(options->exec, "ops"))
        return error_set(error, QP_INVALID,
                         "--workers is the number of the megakernel's thread blocks, and this does "
                         "not run it: on a CPU give --threads");
    if (workers > 0 && workers <= most) return QP_OK;
    return error_set(error, QP_INVALID,
                     "this GPU runs 1 to %d blocks of the megakernel at once, --workers says %d",
                     most, workers);
}

/* What runs the plan: the GPU with the CPU behind it, the CPU as a schedule, or operator by
 * operator. */
static qp_status open_executors(qp_engine *e, const qp_engine_options *options, uint32_t features,
                                qp_error *error)
{
    if (e->device.context) {
        TRY(executor_init_host(&e->executor, &e->plan, e->model, e->pool, features, error));
        TRY(cuda_executor_init(&e->cuda, &e->device, &e->plan, e->model,
                               e->executor.rope_table.data, &e->progress, error));
        return open_mega(e, options, error);
    }
    TRY(executor_init(&e->executor, &e->plan, e->model, e->pool, features, &e->progress, error));
    if (is_named(options->exec, "ref") || is_named(options->exec, "ops")) return QP_OK;
    schedule_options as_usual = {.setting = SCHEDULE_LATENCY, .last_step = e->logits_end};
    TRY(scheduled_init(&e->scheduled, &e->executor, &as_usual, error));
    return is_named(options->exec, "serial") ? scheduled_make_serial(&e->scheduled, error) : QP_OK;
}

static qp_status open_engine(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    uint32_t features = 0;
    int threads = options->threads ? options->threads : threads_available();
    if (!options->model) return error_set(error, QP_INVALID, "no model was named");
    TRY(choose_features(options, &features, error));
    TRY(thread_pool_create(threads, &e->pool, error));
    TRY(choose_device(e, options, error));
    TRY(check_workers(e, options, error));
    TRY(open_model(e, options, features, error));
    e->logits_end = plan_find_step(&e->plan, "lm_head", -1) + 1;
    e->sample_step = plan_find_step(&e->plan, "sample", -1);
    TRY(open_executors(e, options, features, error));
    TRY(batch_init(&e->batch, &e->plan, error));
    TRY(page_pool_init(&e->pages, e->plan.options.n_pages, e->plan.options.page_size, error));
    e->max_sessions = e->plan.options.max_sequences;
    TRY(vocabulary_open_beside(e->model, &e->vocabulary, error));
    TRY(generation_config_read(e->model, e->vocabulary, &e->defaults, error));
    model_release_metadata(e->model);
    warn_of_context(e);
    return QP_OK;
}

/* *on_gpu: whether it came as far as a GPU. */
static qp_status open_as_told(const qp_engine_options *options, qp_engine **out, bool *on_gpu,
                              qp_error *error)
{
    *out = NULL;
    *on_gpu = false;
    qp_engine *e = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the engine", sizeof *e);
    e->log = options->log;
    e->log_context = options->log_context;
    e->tell_progress = options->progress;
    e->progress_context = options->progress_context;
    if (options->progress) e->progress = (progress){.sink = on_progress, .context = e};
    qp_status status = open_engine(e, options, error);
    *on_gpu = e->device.context != NULL;
    if (status == QP_OK)
        *out = e;
    else
        qp_engine_close(e);
    return status;
}

qp_status qp_engine_open(const qp_engine_options *options, qp_engine **out, qp_error *error)
{
    qp_error own = {0}, *why = error ? error : &own;
    char message[QP_ERROR_SIZE + 64];
    bool on_gpu;
    qp_status status = open_as_told(options, out, &on_gpu, why);
    if (status != QP_NO_MEMORY || !on_gpu || !is_named(options->device, "auto") ||
        is_named(options->exec, "mk"))
        return status;
    snprintf(message, sizeof message, "running on the CPU: %s", why->message);
    if (options->log) options->log(options->log_context, QP_LOG_NOTICE, message);
    qp_engine_options on_cpu = *options;
    on_cpu.device = "cpu";
    return open_as_told(&on_cpu, out, &on_gpu, error);
}

void qp_engine_close(qp_engine *e)
{
    if (!e) return;
    qp_vocabulary_close(e->vocabulary);
    page_pool_free(&e->pages);
    batch_free(&e->batch);
    scheduled_free(&e->scheduled);
    cuda_mega_free(&e->mega);
    cuda_executor_free(&e->cuda);
    executor_free(&e->executor);
    cuda_device_close(&e->device);
    plan_free(&e->plan);
    model_close(e->model);
    thread_pool_destroy(e->pool);
    free(e);
}

qp_engine_info qp_engine_get_info(const qp_engine *e)
{
    const model_config *config = &e->plan.config;
    return (qp_engine_info){.vocab_size = config->vocab_size,
                            .context = e->plan.options.context,
                            .model_context = config->context_length,
                            .max_outputs = e->plan.options.max_outputs,
                            .chunk = e->plan.options.max_tokens,
                            .weight_bytes = model_weight_bytes(e->model),
                            .read_bytes = model_read_bytes(e->model),
                            .threads = thread_pool_size(e->pool),
                            .workers =
                                e->mega.kernel ? e->mega.n_blocks : thread_pool_size(e->pool),
                            .device = e->device.context ? e->device.name : "cpu"};
}

const qp_vocabulary *qp_engine_vocabulary(const qp_engine *e)
{
    return e->vocabulary;
}
