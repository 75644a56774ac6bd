/* The engine: a model, its plan, and all memory that running it takes. */
#include "base/sized.h"
#include "cuda/blas.h"
#include "engine/draft.h"
#include "engine/open.h"
#include "model/family/family.h"
#include "op/linear/linear_f8_cuda.h"
#include "lower/lower.h"
#include "plan/weights.h"
#include "vm/ranks.h"

#include <stdio.h>
#include <stdlib.h>

void engine_say(const qp_engine *e, qp_log_level level, const char *message)
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

const char *engine_about_context(const qp_engine *e)
{
    const model_config *c = &e->program.config;
    const int64_t context = e->program.options.context;
    if (c->window && context == c->window)
        return "the model's sliding window; -c sets a longer context";
    if (context == c->context_length)
        return "the context length that the model's file gives; -c sets another";
    return "-c sets another length";
}

static void warn_of_context(const qp_engine *e)
{
    int64_t asked = e->program.options.context, trained = e->program.config.context_length;
    if (asked <= trained || e->program.config.rope.scaling == ROPE_DYNAMIC) return;
    char message[160];
    snprintf(message, sizeof message,
             "a context of %lld goes past the %lld positions the model was trained for",
             (long long)asked, (long long)trained);
    engine_say(e, QP_LOG_WARNING, message);
}

static void say_fp8(const qp_engine *e)
{
    const int64_t n = model_fp8_matrices(e->model);
    if (n == 0) return;
    const int64_t kept = model_fp8_kept(e->model);
    char message[240];
    snprintf(message, sizeof message,
             "of %lld matrices in FP8 %lld stay so and %lld are multiplied as BF16, which takes "
             "twice their bytes%s; scales of inputs are not used",
             (long long)n, (long long)kept, (long long)(n - kept),
             kept == n || !(e->device.context || e->ranks.size > 1) ? ""
             : e->device.context                                    ? ", as on a GPU"
                                                                    : ", as on several ranks");
    engine_say(e, QP_LOG_INFO, message);
}

/* Sizes first, so that what does not fit is refused before weights are made; for a GPU they are
 * made on their way. */
static qp_status open_model(qp_engine *e, const qp_engine_options *options,
                            const machine_type *type, qp_error *error)
{
    adapter_choice adapters[ADAPTER_MAX];
    model_options sizes_only = {.fp8_as_bf16 = e->ranks.size > 1}, whole;
    TRY(engine_choose_adapters(options, adapters, &sizes_only.adapters, &e->adapters, error));
    if (e->device.context)
        engine_fp8_on_gpu(options->activations,
                          cuda_device_has(&e->device, CUDA_F8_NEEDS) && !e->has_cuda_kernels &&
                              e->ranks.size == 1,
                          &sizes_only);
    whole = sizes_only;
    sizes_only.sizes_only = true;
    TRY(model_open(options->model, &sizes_only, &e->model, error));
    progress_stage_ended(&e->progress, "reading the file's header");
    say_fp8(e);
    plan_options chosen;
    model_config config = *model_get_config(e->model);
    /* Matrices in FP8 are in panels where cuBLASLt cannot multiply rows. */
    if (e->device.context &&
        model_get_weight(e->model, WEIGHT_FFN_DOWN, 0)->weight.type == DTYPE_F8_128 &&
        !cuda_blas_is_there())
        config.fp8_by_rows = false;
    TRY(plan_take_layers(&config, e->layers, error));
    TRY(engine_choose_plan(options, &config, e->device.context != NULL, e->adapters.at_once,
                           &chosen, error));
    TRY(lower_build(&config, e->model, &chosen, &e->program, error));
    TRY(engine_choose_activations(e, options, type, error));
    progress_stage_ended(&e->progress, "planning");
    TRY(engine_check_memory(e, options, type, error));
    if (e->device.context) return QP_OK;
    if (model_has_weights(e->model)) return QP_OK;
    if (e->ranks.world && e->ranks.size > 1) return QP_OK; /* each process makes its own part */
    uint64_t weight_bytes = model_weight_bytes(e->model);
    model_close(e->model);
    e->model = NULL;
    whole.discardable = e->ranks.size == 1;
    whole.pool = e->pool;
    whole.progress = &e->progress;
    progress_begin(&e->progress, "making weights", weight_bytes);
    TRY(model_open(options->model, &whole, &e->model, error));
    program_attach(&e->program, e->model);
    progress_end(&e->progress);
    progress_stage_ended(&e->progress, "making weights");
    return QP_OK;
}

/* What sessions and samplers need. `fixed`: passes have fixed shapes. */
static qp_status open_decoding(qp_engine *e, int64_t sessions, bool fixed, qp_error *error)
{
    const qp_sampling greedy = {.size = sizeof greedy,
                                .value = {[QP_TOP_P] = 1, [QP_REPETITION_PENALTY] = 1}};
    e->max_sessions = sessions;
    e->sessions = calloc((size_t)e->max_sessions, sizeof *e->sessions);
    if (!e->sessions)
        return error_no_memory(error, "sessions", (size_t)e->max_sessions * sizeof *e->sessions);
    TRY(step_init(&e->step, &e->program, error));
    TRY(engine_open_sampler(e, &greedy, &e->greedy, error));
    e->greedy->begun = true; /* its answers need no first token */
    return fixed ? step_fix_shapes(e, error) : QP_OK;
}

static qp_status open_speculation(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    if (!engine_speculates(options)) return QP_OK;
    const char *how = options->speculate;
    if (how && !option_is(how, "lookup") && !option_is(how, "off"))
        return error_set(error, QP_INVALID, "speculation is off or lookup, found \"%s\"", how);
    if (options->draft && option_is(how, "lookup"))
        return error_set(error, QP_INVALID,
                         "--speculate lookup and --draft both propose tokens: leave one out");
    if (program_has_dynamic_rope(&e->program))
        return error_set(error, QP_UNSUPPORTED,
                         "%s has RoPE angles that depend on the length of the text, so a pass "
                         "cannot verify several tokens: leave --speculate and --draft out",
                         model_path(e->model));
    if (e->program.options.form != PLAN_PAGED)
        return error_set(error, QP_UNSUPPORTED,
                         "with the plan %s a pass that verifies several tokens has other bits than "
                         "passes of one: leave --speculate and --draft out, or --plan",
                         plan_form_name(e->program.options.form));
    if (e->step.fixed.rows)
        return error_set(error, QP_INVALID,
                         "passes of fixed shapes have no room for tokens to verify: leave "
                         "--speculate and --draft out, or --batch-invariant");
    proposer *p = &proposer_lookup;
    qp_status status = options->draft ? draft_open(e, options, &p, error) : QP_OK;
    if (status == QP_OK) return speculation_init(&e->speculation, p, e->max_sessions, error);
    if (p) p->close(p);
    return status;
}

/* Of all ranks together, or of the layers that run. */
static uint64_t read_bytes_of(const qp_engine *e)
{
    const bool whole = e->program.config.n_layers == model_get_config(e->model)->n_layers;
    return whole ? model_read_bytes(e->model) : program_read_bytes(&e->program);
}

static qp_engine_info info_of(const qp_engine *e)
{
    const model_config *config = &e->program.config;
    return (qp_engine_info){.size = sizeof(qp_engine_info),
                            .vocab_size = config->vocab_size,
                            .context = e->program.options.context,
                            .model_context = config->context_length,
                            .max_outputs = e->program.options.max_outputs,
                            .chunk = e->program.options.max_tokens,
                            .weight_bytes = model_weight_bytes(e->model),
                            .read_bytes = read_bytes_of(e),
                            .threads = thread_pool_size(e->pool),
                            .workers = engine_workers(e),
                            .device = e->device_text,
                            .hidden_size = config->hidden_size,
                            .page_size = e->program.options.page_size,
                            .max_sessions = e->max_sessions,
                            .n_adapters = config->adapters.n};
}

/* The machine that the chosen schedule is for: the one that decodes. */
static const machine_type *type_of_schedule(const qp_engine *e, const machine_type *type)
{
    if (type) return type;
    return e->device.context ? &machine_megakernel : &machine_threads;
}

/* Opens everything up to the model; *type: the machine, of each rank if there are several. */
static qp_status open_basis(qp_engine *e, const qp_engine_options *options,
                            const engine_schedule *chosen, const machine_type **out,
                            qp_error *error)
{
    const machine_type *type;
    int threads = options->threads;
    TRY(engine_ranks_open(options, &e->ranks, error));
    if (!threads) TRY(engine_schedule_workers(chosen, &threads, error));
    if (!threads) threads = engine_ranks_threads(&e->ranks);
    engine_ranks_bind(&e->ranks, threads);
    TRY(engine_check_model(options, error));
    TRY(engine_choose_machine(options, &type, error));
    TRY(engine_choose_features(e, options, error));
    TRY(engine_take_kernels(e, options, error));
    TRY(thread_pool_create(threads, &e->pool, error));
    TRY(engine_choose_device(e, options, type, error));
    TRY(engine_check_workers(e, options, error));
    TRY(engine_schedule_check_ranks(chosen, e->ranks.size, error));
    TRY(engine_schedule_check(chosen, type_of_schedule(e, type), options->fuse, error));
    TRY(engine_connect_ranks(e, error));
    engine_name_device(e);
    engine_load_costs(e, e->costs_path);
    if (!type && !e->device.context) type = &machine_threads;
    *out = type;
    progress_stage_ended(&e->progress, "finding processors and GPUs");
    return open_model(e, options, type, error);
}

/* The machines, and the memory of batches and sessions. */
static qp_status open_running(qp_engine *e, const qp_engine_options *options,
                              const engine_schedule *chosen, const machine_type *type,
                              qp_error *error)
{
    TRY(engine_open_machines(e, options, chosen, type, error));
    TRY(observer_open(e, options, &e->observer, error));
    TRY(batch_init(&e->batch, &e->program, error));
    const bool fixed = engine_has_fixed_shapes(options, e->device.context != NULL);
    const int64_t sessions = options->max_sessions ? options->max_sessions : 1;
    TRY(open_decoding(e, sessions, fixed, error));
    TRY(page_pool_init(&e->pages, e->program.options.n_pages - fixed, e->program.options.page_size,
                       error));
    progress_stage_ended(&e->progress, "taking memory for batches");
    return QP_OK;
}

static qp_status open_engine(qp_engine *e, const qp_engine_options *options,
                             const engine_schedule *chosen, qp_error *error)
{
    const machine_type *type = NULL;
    vocabulary_reading reading;
    qp_error unread;
    TRY(open_basis(e, options, chosen, &type, error));
    vocabulary_begin(e->model, &reading);
    qp_status status = open_running(e, options, chosen, type, error);
    const bool runs = status == QP_OK;
    qp_status read = vocabulary_end(&reading, &e->vocabulary, runs ? error : &unread);
    if (!runs) return status;
    TRY(read);
    progress_stage_ended(&e->progress, "waiting for the vocabulary, read meanwhile");
    TRY(open_speculation(e, options, error));
    TRY(generation_config_read(e->model, e->vocabulary, &e->defaults, error));
    model_release_metadata(e->model);
    e->info = info_of(e);
    warn_of_context(e);
    engine_say_copies(e);
    engine_say_who_chooses(e);
    progress_stage_ended(&e->progress, "reading settings");
    return QP_OK;
}

/* Opens on the device of the options, and on no other. *on_gpu: whether a GPU was opened before it
 * failed. */
static qp_status open_once(const qp_engine_options *options, const engine_part *part,
                           qp_engine **out, bool *on_gpu, qp_error *error)
{
    *out = NULL;
    *on_gpu = false;
    qp_engine *e = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the engine", sizeof *e);
    qp_error own = {0}, *why = error ? error : &own;
    qp_status status = engine_owner_init(&e->owner, why);
    if (status != QP_OK) return free(e), status;
    e->layers = part->layers;
    e->costs_path = part->costs;
    e->at_once = part->at_once;
    e->admit = part->admit;
    e->admit_context = part->admit_context;
    e->log = options->log;
    e->log_context = options->log_context;
    e->tell_progress = options->progress;
    e->progress_context = options->progress_context;
    if (options->progress) e->progress = (progress){.sink = on_progress, .context = e};
    progress_begin_stages(&e->progress);
    engine_schedule chosen;
    status = engine_schedule_read(options->schedule, &chosen, why);
    chosen.skip = part->skip;
    e->partial = engine_schedule_leaves_out(&chosen);
    if (status == QP_OK) status = open_engine(e, options, &chosen, why);
    engine_schedule_free(&chosen);
    if (status != QP_OK) engine_ranks_abort(&e->ranks, why->message);
    *on_gpu = e->device.context != NULL;
    if (status == QP_OK)
        *out = e;
    else
        qp_engine_close(e);
    return status;
}

qp_status engine_open_part(const qp_engine_options *given, const engine_part *part, qp_engine **out,
                           qp_error *error)
{
    qp_error own = {0}, *why = error ? error : &own;
    char message[QP_ERROR_SIZE + 64];
    qp_engine_options options;
    bool on_gpu;
    *out = NULL;
    TRY(SIZED_READ(qp_engine_options, given, &options, error));
    qp_status status = open_once(&options, part, out, &on_gpu, why);
    if (status != QP_NO_MEMORY || !on_gpu || !option_is_automatic(options.device) ||
        !option_is_automatic(options.exec))
        return status;
    snprintf(message, sizeof message, "running on the CPU: %s", why->message);
    if (options.log) options.log(options.log_context, QP_LOG_NOTICE, message);
    options.device = "cpu";
    return open_once(&options, part, out, &on_gpu, error);
}

qp_status qp_engine_open(const qp_engine_options *given, qp_engine **out, qp_error *error)
{
    const engine_part all = {.layers = 0};
    return engine_open_part(given, &all, out, error);
}

void engine_shut(qp_engine *e)
{
    if (e->trace) trace_stop(e->trace);
    if (e->greedy) engine_close_object(e, &e->greedy->object);
    for (int64_t i = 0; e->sessions && i < e->max_sessions; i++)
        if (e->sessions[i]) page_list_free(&e->sessions[i]->pages, &e->pages);
    qp_vocabulary_close(e->vocabulary);
    prefix_tree_close(&e->prefixes);
    page_pool_free(&e->pages);
    batch_free(&e->batch);
    step_drop(e);
    step_free(&e->step);
    speculation_free(&e->speculation);
    observer_free(&e->observer);
    free(e->sessions);
    free(e->costs);
    for (int i = 0; i < ENGINE_MACHINES; i++)
        machine_close(&e->slots[i]); /* the one that has the memory last */
    engine_ranks_close(&e->ranks);
    cuda_device_close(&e->device);
    program_free(&e->program);
    model_close(e->model);
    thread_pool_destroy(e->pool);
    e->owner.closed = true;
    e->owner.references--;
}

void qp_engine_close(qp_engine *e)
{
    if (!e || !engine_begin_close(e)) return;
    engine_shut(e);
    engine_leave(e);
}

static qp_status follow(qp_engine *e, const qp_engine_options *options,
                        const engine_schedule *chosen, qp_error *error)
{
    const machine_type *type = NULL;
    TRY(open_basis(e, options, chosen, &type, error));
    if (!e->ranks.world || comm_rank(e->ranks.world) == 0)
        return error_set(error, QP_INVALID, "the first rank opens an engine, it does not follow");
    const schedule_options schedule = engine_schedule_options(e, chosen);
    if (e->device.context) type = &machine_cuda;
    machine_setup setup = engine_machine_setup(e, options, type, &schedule);
    pack_cache cache;
    setup.packed = engine_packed(e, options, &cache);
    return ranks_follow(&setup, error);
}

qp_status qp_rank_follow(const qp_engine_options *given, qp_error *error)
{
    qp_engine_options options;
    TRY(SIZED_READ(qp_engine_options, given, &options, error));
    qp_engine *e = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the engine", sizeof *e);
    qp_error own = {0}, *why = error ? error : &own;
    qp_status status = engine_owner_init(&e->owner, why);
    if (status != QP_OK) return free(e), status;
    e->log = options.log;
    e->log_context = options.log_context;
    if (!options.transport || strcmp(options.transport, "messages") != 0) options.transport = "mpi";
    engine_schedule chosen;
    status = engine_schedule_read(options.schedule, &chosen, why);
    if (status == QP_OK) status = follow(e, &options, &chosen, why);
    engine_schedule_free(&chosen);
    if (status != QP_OK) engine_ranks_abort(&e->ranks, why->message);
    qp_engine_close(e);
    return status;
}

const qp_engine_info *qp_engine_get_info(const qp_engine *e)
{
    return &e->info;
}

const qp_vocabulary *qp_engine_vocabulary(const qp_engine *e)
{
    return e->vocabulary;
}

qp_status qp_measure_read(qp_engine *e, double *bytes_per_second, qp_error *error)
{
    machine_profile limits;
    TRY(engine_enter(e, error));
    step_drop(e);
    qp_status status =
        e->device.context
            ? machine_limits(engine_memory(e), &limits, error)
            : error_set(error, QP_UNSUPPORTED, "reading is measured on a GPU: use --device cuda");
    if (status == QP_OK) *bytes_per_second = limits.bytes_per_second;
    engine_leave(e);
    return status;
}

qp_status error_of_callback(qp_status status, qp_error *error)
{
    if (status == QP_OK || (error && error->status == status)) return status;
    return error_set(error, status, "a callback ended the call");
}

const char *engine_family(const qp_engine *e)
{
    return e->program.config.family->name;
}

const char *engine_gguf_family(const qp_engine *e)
{
    return e->program.config.family->gguf;
}
