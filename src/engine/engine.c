/* The engine: a model, its plan, and all memory that running it takes. */
#include "engine/engine.h"

#include "base/cpu.h"
#include "base/sized.h"
#include "engine/draft.h"
#include "engine/schedule.h"
#include "op/op.h"
#include "plan/plan.h"
#include "vm/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_CONTEXT = 8192,
    DEFAULT_CHUNK = 512,
    DEVICE_CHUNK = 2048, /* a GPU wants more at once */
    FIXED_CHUNK = 1024,  /* if all prompts are read in passes of the same size */
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

static bool is_named(const char *choice, const char *name)
{
    return choice && strcmp(choice, name) == 0;
}

static bool speculates(const qp_engine_options *options)
{
    return options->draft || (options->speculate && !is_named(options->speculate, "off"));
}

/* Rows of proposals in a pass: those of one sequence, or some of each of several. */
static int64_t speculated_rows(int64_t max_sessions)
{
    enum { EACH = 3 };
    const int64_t rows = EACH * max_sessions;
    return rows < SPECULATE_MOST ? SPECULATE_MOST : rows < SPECULATE_ROWS ? rows : SPECULATE_ROWS;
}

/* Room for the rows that fill passes of fixed shapes: one more sequence, and a page that all of
 * these rows write to. */
static void fix_shapes(plan_options *o)
{
    const int64_t pages = (o->context + o->page_size - 1) / o->page_size;
    o->n_pages = (o->n_pages ? o->n_pages : pages * o->max_sequences) + 1;
    if (o->max_tokens > o->context) o->max_tokens = o->context;
    if (o->max_tokens < o->max_sequences) o->max_tokens = o->max_sequences;
    if (o->max_outputs < o->max_sequences) o->max_outputs = o->max_sequences;
    o->max_sequences++;
}

static qp_status choose_options(const qp_engine_options *given, const model_config *config,
                                int64_t chunk, bool fixed, plan_options *out, qp_error *error)
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
    if (speculates(given)) out->max_outputs += speculated_rows(out->max_sequences);
    out->page_size = given->page_size ? given->page_size : DEFAULT_PAGE_SIZE;
    out->n_pages = given->pages;
    out->fuse = given->fuse;
    out->few_alike = speculates(given); /* checked tokens are those of passes of one */
    if (fixed) fix_shapes(out);
    if (given->kv_type) out->kv_type = dtype_from_name(given->kv_type);
    if (out->kv_type == DTYPE_COUNT)
        return error_set(error, QP_INVALID, "the KV cache must be F32, F16 or BF16, found \"%s\"",
                         given->kv_type);
    return QP_OK;
}

static bool is_automatic(const char *choice)
{
    return !choice || strcmp(choice, "auto") == 0;
}

/* The machine that is asked for; NULL: that is left to the engine. */
static qp_status choose_type(const qp_engine_options *options, const machine_type **out,
                             qp_error *error)
{
    *out = NULL;
    if (is_automatic(options->exec)) return QP_OK;
    return machine_type_find(options->exec, out, error);
}

/* A token reads no more than this where activations are rounded to 16 bits by default. */
enum { SMALL_MODEL_BYTES = 256 << 20 };

/* A choice that has no effect is a warning. */
static void say_activations(const qp_engine *e, const char *choice, const machine_type *type,
                            uint32_t bits)
{
    const dtype stored = model_get_weight(e->model, WEIGHT_FFN_DOWN, 0)->weight.type;
    const char *why = e->device.context             ? "a GPU does not round them"
                      : type->references            ? "reference kernels do not round them"
                      : !dtype_is_quantized(stored) ? "the model's weights are not quantised"
                                                    : NULL;
    char message[160];
    if (!why)
        snprintf(message, sizeof message, "quantised products take activations %s",
                 op_x_bits_text(bits));
    else if (is_automatic(choice) || bits & OP_X_FLOAT)
        return;
    else
        snprintf(message, sizeof message, "activations are not %s: %s", op_x_bits_text(bits), why);
    say(e, why ? QP_LOG_WARNING : QP_LOG_INFO, message);
}

/* How products of quantised weights take activations: see op_x_bits_parse(). */
static qp_status choose_activations(qp_engine *e, const qp_engine_options *options,
                                    const machine_type *type, qp_error *error)
{
    uint32_t bits = 0;
    const char *const choice = options->activations;
    if (is_automatic(choice))
        bits = model_read_bytes(e->model) <= SMALL_MODEL_BYTES ? OP_X_16 : 0;
    else
        TRY(op_x_bits_parse(choice, &bits, error));
    e->cpu_features |= bits;
    say_activations(e, choice, type, bits);
    return QP_OK;
}

static qp_status choose_features(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    uint32_t off;
    TRY(cpu_features_parse(options->cpu_mask ? options->cpu_mask : "", &off, error));
    e->cpu_features = cpu_features(off);
    return QP_OK;
}

static qp_status take_kernels(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    e->has_kernels = options->n_kernels > 0;
    if (!e->has_kernels) return QP_OK;
    if (is_named(options->device, "cuda"))
        return error_set(error, QP_UNSUPPORTED,
                         "kernels from outside run on the CPU, but --device cuda excludes that: "
                         "leave it out");
    return kernel_table_fill(&e->kernels, options->kernels, options->n_kernels, error);
}

/* What contradicts itself. */
static qp_status check_device(const qp_engine_options *options, const machine_type *type,
                              qp_error *error)
{
    const char *device = options->device;
    const bool cpu = is_named(device, "cpu"), cuda = is_named(device, "cuda");
    if (device && !cpu && !cuda && !is_named(device, "auto"))
        return error_set(error, QP_INVALID, "the device must be auto, cpu or cuda, found \"%s\"",
                         device);
    if (type && type->on_gpu && cpu)
        return error_set(error, QP_INVALID,
                         "--exec %s runs on a GPU, but --device cpu excludes that: leave one out",
                         type->name);
    if (type && !type->on_gpu && cuda)
        return error_set(error, QP_INVALID,
                         "--exec %s runs on the CPU; with --device cuda it is megakernel, cuda or "
                         "auto",
                         type->name);
    if (cpu && options->gpus && *options->gpus)
        return error_set(error, QP_INVALID,
                         "--gpus %s names GPUs, but --device cpu excludes them: leave one out",
                         options->gpus);
    return QP_OK;
}

/* The GPU where the device is "auto", if there is one. */
static void try_device(qp_engine *e)
{
    qp_error why = {0};
    char message[QP_ERROR_SIZE + 64];
    const bool found = cuda_device_open(&e->device, &why) == QP_OK;
    if (found)
        snprintf(message, sizeof message, "running on %s; --device cpu does not", e->device.name);
    else
        snprintf(message, sizeof message, "running on the CPU: %s", why.message);
    if (!found) cuda_device_close(&e->device);
    say(e, found ? QP_LOG_NOTICE : QP_LOG_INFO, message);
}

/* Opens the GPU if it is asked for by the device or the machine, or if both leave it open and there
 * is one. */
static qp_status choose_device(qp_engine *e, const qp_engine_options *options,
                               const machine_type *type, qp_error *error)
{
    char message[128];
    TRY(check_device(options, type, error));
    if (type && type->on_gpu) {
        qp_error why = {0};
        qp_status status = engine_ranks_device(&e->ranks, &e->device, &why);
        if (status == QP_OK) return QP_OK;
        return error_set(error, why.status, "--exec %s runs on a GPU, but %s", type->name,
                         why.message);
    }
    if (is_named(options->device, "cuda") || e->ranks.n_numbers)
        return engine_ranks_device(&e->ranks, &e->device, error);
    if (!is_named(options->device, "auto") || e->ranks.size > 1) return QP_OK;
    if (e->has_kernels) {
        say(e, QP_LOG_INFO, "running on the CPU, where kernels from outside run");
        return QP_OK;
    }
    if (!type) {
        try_device(e);
        return QP_OK;
    }
    snprintf(message, sizeof message, "running on the CPU, as --exec %s does", type->name);
    say(e, QP_LOG_INFO, message);
    return QP_OK;
}

/* What machines are opened for; `inner` is the machine of each of several ranks. */
static machine_setup setup_of(qp_engine *e, const qp_engine_options *options,
                              const machine_type *inner, const schedule_options *schedule)
{
    return (machine_setup){.program = &e->program,
                           .pool = e->pool,
                           .cpu_features = e->cpu_features,
                           .kernels = e->has_kernels ? &e->kernels : NULL,
                           .progress = &e->progress,
                           .schedule = schedule,
                           .order = options->order,
                           .inner = inner,
                           .n_ranks = e->ranks.size,
                           .cut = e->ranks.cut,
                           .gpus = e->ranks.gpus,
                           .group = e->ranks.size > 1 ? e->ranks.world : NULL,
                           .device = e->device.context ? &e->device : NULL};
}

/* What is opened where a model runs on machines of that type. */
static const machine_type *type_of_ranks(const qp_engine *e, const machine_type *type)
{
    return e->ranks.size > 1 ? &machine_ranks : type;
}

/* A run that does not fit is refused before any weight is read. Weights count as the kernels keep
 * them. */
static qp_status check_memory(qp_engine *e, const qp_engine_options *options,
                              const machine_type *type, qp_error *error)
{
    const machine_setup setup = setup_of(e, options, type, NULL);
    const double gib = 1 << 30;
    machine_bytes need;
    TRY(machine_count_bytes(type_of_ranks(e, type), &setup, &need, error));
    uint64_t available = buffer_available();
    if (need.total <= available) return QP_OK;
    int64_t fits =
        plan_largest_context(&e->program.config, &e->program.options, need.weights, available);
    return error_set(
        error, QP_NO_MEMORY,
        "%s needs %.2f GiB (weights %.2f, KV cache %.2f for %lld times %lld positions), but %.2f "
        "GiB are available; %s%lld",
        model_path(e->model), (double)need.total / gib, (double)need.weights / gib,
        (double)need.kv_cache / gib, (long long)e->program.options.max_sequences,
        (long long)e->program.options.context, (double)available / gib,
        fits > 0 ? "the largest context that fits is " : "no context fits, not even one page of ",
        (long long)(fits > 0 ? fits : e->program.options.page_size));
}

const char *engine_about_context(const qp_engine *e)
{
    const model_config *c = &e->program.config;
    const int64_t context = e->program.options.context;
    if (c->window && context == c->window)
        return "the model's sliding window, which is as far as quipu computes its attention";
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
    say(e, QP_LOG_WARNING, message);
}

/* On a CPU the bits depend on nothing else anyway. */
static bool has_fixed_shapes(const qp_engine *e, const qp_engine_options *options)
{
    return options->batch_invariant && e->device.context;
}

/* Sizes first, so that what does not fit is refused before weights are made; for a GPU they are
 * made on their way. */
static qp_status open_model(qp_engine *e, const qp_engine_options *options,
                            const machine_type *type, qp_error *error)
{
    model_options sizes_only = {.sizes_only = true};
    TRY(model_open(options->model, &sizes_only, &e->model, error));
    plan_options chosen;
    const bool fixed = has_fixed_shapes(e, options);
    TRY(choose_options(options, model_get_config(e->model),
                       fixed               ? FIXED_CHUNK
                       : e->device.context ? DEVICE_CHUNK
                                           : DEFAULT_CHUNK,
                       fixed, &chosen, error));
    TRY(plan_build(model_get_config(e->model), e->model, &chosen, &e->program, error));
    TRY(choose_activations(e, options, type, error));
    if (e->device.context) return QP_OK;
    TRY(check_memory(e, options, type, error));
    if (model_has_weights(e->model)) return QP_OK;
    uint64_t weight_bytes = model_weight_bytes(e->model);
    model_close(e->model);
    e->model = NULL;
    model_options whole = {
        .discardable = e->ranks.size == 1, .pool = e->pool, .progress = &e->progress};
    progress_begin(&e->progress, "making weights", weight_bytes);
    TRY(model_open(options->model, &whole, &e->model, error));
    program_attach(&e->program, e->model);
    progress_end(&e->progress);
    return QP_OK;
}

static machine *slot_of(qp_engine *e, int index)
{
    return &e->slots[index];
}

/* The megakernel reads one token of a sequence in a pass, and `cuda` gives other bits. */
static qp_status leave_megakernel(const qp_engine *e, const machine_type *type, qp_error *error)
{
    if (type)
        return error_set(error, QP_UNSUPPORTED,
                         "the megakernel reads one token of a sequence in a pass, and speculation "
                         "has several: use --exec cuda, or leave --speculate and --draft out");
    say(e, QP_LOG_NOTICE,
        "speculation runs on the machine cuda, without the megakernel, which reads one token of a "
        "sequence in a pass");
    return QP_OK;
}

/* Where the megakernel makes a pass of several sequences faster than `cuda`: eight of llama-3.2-1b
 * take 747 us for 826 with contexts of up to 160 positions, and 984 for 928 at 1,024. */
enum { MEGAKERNEL_SEQUENCES = 4, MEGAKERNEL_CONTEXT = 512 };

static bool runs_alone(const plan_options *o)
{
    return o->max_sequences > MEGAKERNEL_SEQUENCES && o->context > MEGAKERNEL_CONTEXT;
}

/* The megakernel over the machine `cuda`, unless that is asked for; what it does not do is run
 * there. */
static qp_status open_megakernel(qp_engine *e, const qp_engine_options *options,
                                 const engine_schedule *chosen, const machine_type *type,
                                 qp_error *error)
{
    qp_error why = {0};
    const schedule_options blocks = {.workers = options->workers,
                                     .assignment = chosen->options.assignment};
    machine_setup setup = setup_of(e, options, NULL, &blocks);
    machine *m = slot_of(e, 0);
    setup.over = engine_memory(e);
    setup.alone = !type && runs_alone(&e->program.options);
    if (is_named(options->exec, "cuda") || e->ranks.size > 1) return QP_OK;
    if (speculates(options)) return leave_megakernel(e, type, error);
    qp_status status = machine_open(&machine_megakernel, &setup, m, &why);
    if (status == QP_OK) {
        e->n_machines++;
        return QP_OK;
    }
    machine_close(m);
    if (type || (status != QP_NO_MEMORY && status != QP_UNSUPPORTED))
        return error_set(error, status, "%s%s", why.message,
                         status == QP_UNSUPPORTED ? "; --exec cuda runs any model" : "");
    if (status == QP_UNSUPPORTED && options->workers)
        return error_set(error, status, "%s, so that --workers %d has no meaning", why.message,
                         options->workers);
    say(e, status == QP_NO_MEMORY ? QP_LOG_NOTICE : QP_LOG_INFO,
        status == QP_NO_MEMORY
            ? "the GPU has no room for the megakernel's tables: running operator by operator"
            : why.message);
    return QP_OK;
}

/* Workers are the megakernel's blocks, all of which run at once. */
static qp_status check_workers(const qp_engine *e, const qp_engine_options *options,
                               qp_error *error)
{
    const int workers = options->workers, most = e->device.n_multiprocessors;
    if (workers == 0) return QP_OK;
    if (!e->device.context || is_named(options->exec, "cuda"))
        return error_set(error, QP_INVALID,
                         "--workers is the number of the megakernel's thread blocks, and this does "
                         "not run it: on a CPU give --threads");
    if (workers > 0 && workers <= most) return QP_OK;
    return error_set(error, QP_INVALID,
                     "this GPU runs 1 to %d blocks of the megakernel at once, --workers says %d",
                     most, workers);
}

/* The machine that has the memory, and those over it. */
static qp_status open_machines(qp_engine *e, const qp_engine_options *options,
                               const engine_schedule *chosen, const machine_type *type,
                               qp_error *error)
{
    const schedule_options schedule = engine_schedule_options(chosen, &e->program);
    machine_setup setup = setup_of(e, options, type, &schedule);
    setup.schedule_file = chosen->file;
    const bool gpu = e->device.context != NULL;
    e->n_machines = 1;
    if (gpu) setup.inner = &machine_cuda;
    TRY(machine_open(type_of_ranks(e, gpu ? &machine_cuda : type), &setup,
                     slot_of(e, ENGINE_MACHINES - 1), error));
    return gpu ? open_megakernel(e, options, chosen, type, error) : QP_OK;
}

/* Few blocks have no room to choose in. */
static void say_who_chooses(const qp_engine *e)
{
    const machine_pace likeliest = engine_pace(e, 1, MACHINE_LIKELIEST);
    const machine_pace sampled = engine_pace(e, 1, MACHINE_SAMPLED);
    if (sampled.passes < likeliest.passes)
        say(e, QP_LOG_INFO,
            "so few of the megakernel's blocks have no room to choose tokens in: those that are "
            "not just the likeliest are chosen after each pass");
}

/* What sessions and samplers need. */
static qp_status open_decoding(qp_engine *e, bool fixed, qp_error *error)
{
    const qp_sampling greedy = {.size = sizeof greedy,
                                .value = {[QP_TOP_P] = 1, [QP_REPETITION_PENALTY] = 1}};
    e->max_sessions = e->program.options.max_sequences - fixed;
    e->sessions = calloc((size_t)e->max_sessions, sizeof *e->sessions);
    if (!e->sessions)
        return error_no_memory(error, "sessions", (size_t)e->max_sessions * sizeof *e->sessions);
    TRY(step_init(&e->step, &e->program, error));
    TRY(qp_sampler_open(e, &greedy, &e->greedy, error));
    e->greedy->begun = true; /* its answers need no first token */
    return fixed ? step_fix_shapes(e, error) : QP_OK;
}

static qp_status open_speculation(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    if (!speculates(options)) return QP_OK;
    const char *how = options->speculate;
    if (how && !is_named(how, "lookup") && !is_named(how, "off"))
        return error_set(error, QP_INVALID, "speculation is off or lookup, found \"%s\"", how);
    if (options->draft && is_named(how, "lookup"))
        return error_set(error, QP_INVALID,
                         "--speculate lookup and --draft both propose tokens: leave one out");
    if (program_turns_by_length(&e->program))
        return error_set(error, QP_UNSUPPORTED,
                         "%s has RoPE angles that depend on the length of the text, so a pass "
                         "cannot verify several tokens: leave --speculate and --draft out",
                         model_path(e->model));
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

/* The queues that the machine which is asked first reads. */
static int workers_of(const qp_engine *e)
{
    const machine *m = engine_machine(e, 0);
    const bool blocks = m->type == &machine_megakernel;
    return blocks ? machine_schedule(m)->options.workers : thread_pool_size(e->pool);
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
                            .read_bytes = model_read_bytes(e->model),
                            .threads = thread_pool_size(e->pool),
                            .workers = workers_of(e),
                            .device = e->device_text};
}

static void name_device(qp_engine *e)
{
    const char *name = e->device.context ? e->device.name : "cpu";
    if (e->ranks.gpus)
        snprintf(e->device_text, sizeof e->device_text, "%d x %s", e->ranks.size, name);
    else
        snprintf(e->device_text, sizeof e->device_text, "%s", name);
}

/* On GPUs each rank has one, and runs the machine `cuda`. */
static qp_status connect_ranks(qp_engine *e, const machine_type *type, qp_error *error)
{
    if (!e->device.context) return QP_OK;
    if (e->ranks.size > 1 && type == &machine_megakernel)
        return error_set(error, QP_UNSUPPORTED,
                         "the megakernel runs one rank, found %d: --exec cuda runs several",
                         e->ranks.size);
    return engine_ranks_connect(&e->ranks, &e->device, error);
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
    if (!options->model) return error_set(error, QP_INVALID, "no model was named");
    TRY(choose_type(options, &type, error));
    TRY(choose_features(e, options, error));
    TRY(take_kernels(e, options, error));
    TRY(thread_pool_create(threads, &e->pool, error));
    TRY(choose_device(e, options, type, error));
    TRY(check_workers(e, options, error));
    TRY(engine_schedule_check(chosen, type_of_schedule(e, type), options->fuse, error));
    TRY(connect_ranks(e, type, error));
    name_device(e);
    if (!type && !e->device.context) type = &machine_threads;
    *out = type;
    return open_model(e, options, type, error);
}

static qp_status open_engine(qp_engine *e, const qp_engine_options *options,
                             const engine_schedule *chosen, qp_error *error)
{
    const machine_type *type;
    TRY(open_basis(e, options, chosen, &type, error));
    TRY(open_machines(e, options, chosen, type, error));
    TRY(batch_init(&e->batch, &e->program, error));
    const bool fixed = has_fixed_shapes(e, options);
    TRY(open_decoding(e, fixed, error));
    TRY(page_pool_init(&e->pages, e->program.options.n_pages - fixed, e->program.options.page_size,
                       error));
    TRY(vocabulary_open_beside(e->model, &e->vocabulary, error));
    TRY(open_speculation(e, options, error));
    TRY(generation_config_read(e->model, e->vocabulary, &e->defaults, error));
    model_release_metadata(e->model);
    e->info = info_of(e);
    warn_of_context(e);
    say_who_chooses(e);
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
    engine_schedule chosen;
    qp_status status = engine_schedule_read(options->schedule, &chosen, error);
    if (status == QP_OK) status = open_engine(e, options, &chosen, error);
    engine_schedule_free(&chosen);
    *on_gpu = e->device.context != NULL;
    if (status == QP_OK)
        *out = e;
    else
        qp_engine_close(e);
    return status;
}

qp_status qp_engine_open(const qp_engine_options *given, qp_engine **out, qp_error *error)
{
    qp_error own = {0}, *why = error ? error : &own;
    char message[QP_ERROR_SIZE + 64];
    qp_engine_options options;
    bool on_gpu;
    *out = NULL;
    TRY(SIZED_READ(qp_engine_options, given, &options, error));
    qp_status status = open_as_told(&options, out, &on_gpu, why);
    if (status != QP_NO_MEMORY || !on_gpu || !is_named(options.device, "auto") ||
        !is_automatic(options.exec))
        return status;
    snprintf(message, sizeof message, "running on the CPU: %s", why->message);
    if (options.log) options.log(options.log_context, QP_LOG_NOTICE, message);
    options.device = "cpu";
    return open_as_told(&options, out, &on_gpu, error);
}

void qp_engine_close(qp_engine *e)
{
    if (!e) return;
    qp_vocabulary_close(e->vocabulary);
    prefix_tree_close(&e->prefixes);
    page_pool_free(&e->pages);
    batch_free(&e->batch);
    step_drop(e);
    step_free(&e->step);
    speculation_free(&e->speculation);
    qp_sampler_close(e->greedy);
    free(e->sessions);
    for (int i = 0; i < ENGINE_MACHINES; i++)
        machine_close(slot_of(e, i)); /* the one that has the memory last */
    engine_ranks_close(&e->ranks);
    cuda_device_close(&e->device);
    program_free(&e->program);
    model_close(e->model);
    thread_pool_destroy(e->pool);
    free(e);
}

static qp_status follow(qp_engine *e, const qp_engine_options *options,
                        const engine_schedule *chosen, qp_error *error)
{
    const machine_type *type;
    TRY(open_basis(e, options, chosen, &type, error));
    if (!e->ranks.world || comm_rank(e->ranks.world) == 0)
        return error_set(error, QP_INVALID, "the first rank opens an engine, it does not follow");
    const schedule_options schedule = engine_schedule_options(chosen, &e->program);
    const machine_setup setup = setup_of(e, options, type, &schedule);
    return ranks_follow(&setup, error);
}

qp_status qp_rank_follow(const qp_engine_options *given, qp_error *error)
{
    qp_engine_options options;
    TRY(SIZED_READ(qp_engine_options, given, &options, error));
    qp_engine *e = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "the engine", sizeof *e);
    e->log = options.log;
    e->log_context = options.log_context;
    options.device = "cpu";
    options.transport = "mpi";
    engine_schedule chosen;
    qp_status status = engine_schedule_read(options.schedule, &chosen, error);
    if (status == QP_OK) status = follow(e, &options, &chosen, error);
    engine_schedule_free(&chosen);
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
    step_drop(e);
    if (!e->device.context)
        return error_set(error, QP_UNSUPPORTED, "reading is measured on a GPU: use --device cuda");
    TRY(machine_limits(engine_memory(e), &limits, error));
    *bytes_per_second = limits.bytes_per_second;
    return QP_OK;
}
