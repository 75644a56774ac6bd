/* Opens what a comparison needs: see diff_open.h. */
#include "inspect/diff/diff_open.h"

#include "base/cpu.h"
#include "base/hash.h"
#include "base/platform.h"
#include "engine/open.h"
#include "engine/ranks.h"
#include "lower/lower.h"
#include "op/linear/linear_f8_cuda.h"
#include "op/op.h"
#include "schedule/build.h"
#include "vm/cuda/custom_kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_TOKENS = 16, USUAL_CHUNK = 512, USUAL_PAGE_SIZE = 16, MOST_OUTPUTS = 16 };

static int64_t or_usual(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
}

static void on_progress(void *context, const progress *progress)
{
    const diff *d = context;
    strbuf line = {0};
    progress_print(progress, &line);
    d->options->progress(NULL, strbuf_text(&line), progress->done >= progress->total);
    strbuf_free(&line);
}

static qp_status choose_tokens(diff *d, int64_t vocab_size, qp_error *error)
{
    const diff_options *o = d->options;
    int64_t n = d->request.n_tokens = or_usual(o->n_tokens, USUAL_TOKENS);
    d->request.tokens = o->tokens;
    for (int64_t i = 0; o->tokens && i < n; i++) {
        if (o->tokens[i] < 0 || o->tokens[i] >= vocab_size)
            return error_set(error, QP_INVALID,
                             "token %" PRId64 " is %d, but the model's vocabulary has the ids 0 to "
                             "%" PRId64,
                             i, o->tokens[i], vocab_size - 1);
    }
    d->request.singles = o->singles < n && !d->type_b->whole ? o->singles : n;
    d->request.cancel = o->cancel;
    if (o->tokens) return QP_OK;
    d->request.tokens = d->own_tokens = malloc((size_t)n * sizeof *d->own_tokens);
    if (!d->own_tokens) return error_no_memory(error, "token ids", (size_t)n);
    for (int64_t i = 0; i < n; i++)
        d->own_tokens[i] = (int32_t)(hash_random(1, 0, (uint64_t)i) % (uint64_t)vocab_size);
    return QP_OK;
}

/* Room for exactly these tokens, or that of the program for which a schedule was saved. */
static qp_status choose_room(const diff *d, plan_options *out, qp_error *error)
{
    enum { USUAL_MOST_CONTEXT = 8192 };
    const diff_options *o = d->options;
    const int64_t n = d->request.n_tokens, together = n - d->request.singles;
    const int64_t chunk = or_usual(o->chunk, USUAL_CHUNK);
    const int64_t most = out->context < USUAL_MOST_CONTEXT ? out->context : USUAL_MOST_CONTEXT;
    out->context = or_usual(o->context, o->schedule ? most : n);
    if (out->context < n)
        return error_set(error, QP_INVALID,
                         "%" PRId64 " tokens do not fit a context of %" PRId64
                         ": give a larger one "
                         "with -c, or fewer tokens",
                         n, out->context);
    out->max_tokens = together > chunk || o->schedule ? chunk : or_usual(together, 1);
    out->max_outputs = out->max_tokens < MOST_OUTPUTS ? out->max_tokens : MOST_OUTPUTS;
    if (o->schedule) out->max_outputs = 1;
    return QP_OK;
}

/* Makes the plan of the first layers. */
static qp_status build_plan(diff *d, model_config config, qp_error *error)
{
    const diff_options *o = d->options;
    TRY(plan_take_layers(&config, o->layers, error));
    TRY(choose_tokens(d, config.vocab_size, error));
    plan_options options = plan_default_options(&config);
    TRY(choose_room(d, &options, error));
    options.form = o->form;
    TRY(lower_parse_rules(o->rules, &options, error));
    const bool on_cpu = !d->type_a->on_gpu && !d->type_b->on_gpu;
    if (on_cpu && o->ranks <= 1) options.target = PLAN_FOR_CPU; /* ranks have all rows */
    options.fuse = o->fuse;
    options.sums = o->sums || d->type_b->whole;
    options.kv_partitions = o->kv_partitions;
    options.page_size = or_usual(o->page_size, USUAL_PAGE_SIZE);
    if (o->kv_type) options.kv_type = dtype_from_name(o->kv_type);
    if (o->act_type) options.act_type = dtype_from_name(o->act_type);
    return lower_build(&config, d->model, &options, &d->program, error);
}

/* Both machines hold everything except the weights, of which each may have a packed copy. */
static qp_status check_memory(const diff *d, qp_error *error)
{
    program_bytes need = program_count_bytes(&d->program, model_weight_bytes(d->model));
    uint64_t total = need.weights + 2 * need.total, available = platform_free_memory();
    if (total <= available) return QP_OK;
    return error_set(error, QP_NO_MEMORY,
                     "two machines that run %s need up to %.2f GiB, but %.2f GiB are available; "
                     "compare fewer --layers or fewer tokens",
                     d->options->model, (double)total / 0x1p30, (double)available / 0x1p30);
}

static bool has_f8_kernels(void)
{
    cuda_device device = {0};
    const bool found =
        cuda_device_open(&device, NULL) == QP_OK && cuda_device_has(&device, CUDA_F8_NEEDS);
    cuda_device_close(&device);
    return found;
}

static qp_status open_model(diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    const bool on_gpu = d->type_a->on_gpu || d->type_b->on_gpu;
    model_options sizes_only = {.fp8_as_bf16 = o->ranks > 1}, whole;
    for (size_t i = 0; i < o->n_adapters && i < ADAPTER_MAX; i++)
        d->adapters[i] = (adapter_choice){o->adapters[i].path, o->adapters[i].scale};
    sizes_only.adapters = (adapter_choices){d->adapters, (int64_t)o->n_adapters, o->merge_adapters};
    if (on_gpu) engine_fp8_on_gpu(o->activations, o->ranks <= 1 && has_f8_kernels(), &sizes_only);
    whole = sizes_only;
    whole.pool = d->pool;
    whole.progress = &d->progress;
    sizes_only.sizes_only = true;
    TRY(model_open(o->model, &sizes_only, &d->model, error));
    for (int64_t i = 0; i < model_get_config(d->model)->adapters.n; i++) {
        const double scaling = model_get_adapter(d->model, i)->scaling;
        d->shares[i] = (batch_adapter){(int32_t)i, (float)(d->adapters[i].scale * scaling)};
    }
    d->request.adapters = d->shares;
    d->request.n_adapters = model_get_config(d->model)->adapters.n;
    TRY(build_plan(d, *model_get_config(d->model), error));
    TRY(check_memory(d, error));
    if (model_has_weights(d->model)) return QP_OK;
    progress_begin(&d->progress, "making weights", model_weight_bytes(d->model));
    model_close(d->model);
    d->model = NULL;
    TRY(model_open(o->model, &whole, &d->model, error));
    program_attach(&d->program, d->model);
    progress_end(&d->progress);
    return QP_OK;
}

static qp_status choose_steps(diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    int after = -1, stop = d->program.n_steps - 1;
    char label[64];
    if (o->after) TRY(program_parse_step(&d->program, o->after, &after, error));
    if (o->stop) TRY(program_parse_step(&d->program, o->stop, &stop, error));
    if (stop <= after)
        return error_set(error, QP_INVALID,
                         "there is nothing to compare: no step lies after %s and up to %s",
                         o->after, program_step_label(&d->program, stop, label, sizeof label));
    d->request.first = after + 1;
    d->request.last = stop + 1;
    const machine_type *a = d->type_a;
    if ((d->type_b->whole && after >= 0) || a->whole)
        return error_set(error, QP_UNSUPPORTED,
                         "%s runs whole passes from their beginning: it can only be b, without "
                         "--start-after",
                         a->whole ? a->name : d->type_b->name);
    if ((d->type_b->whole || o->schedule) && d->request.last > d->program.logits_end)
        d->request.last = d->program.logits_end;
    return QP_OK;
}

static int threads_of(const diff_options *o)
{
    const int all = threads_available(), ranks = o->ranks > 1 ? o->ranks : 1;
    if (o->threads) return o->threads;
    return all > ranks ? all / ranks : 1;
}

/* The threads of a saved schedule are as many as its queues. */
static qp_status choose_threads(const diff_options *o, int *threads, qp_error *error)
{
    schedule_options saved;
    *threads = threads_of(o);
    if (!o->schedule) return QP_OK;
    TRY(schedule_peek(o->schedule, &saved, error));
    *threads = saved.workers;
    return QP_OK;
}

static qp_status check_schedule(const diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    if (o->skip && o->ranks > 1)
        return error_set(error, QP_UNSUPPORTED,
                         "ranks wait for each other's rows, so that --skip would stop them: leave "
                         "--ranks out");
    if ((!o->schedule && !o->skip) || d->type_b->reschedule) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "--%s is for a schedule, but b, %s, runs none that can be changed: b can be "
                     "threads or serial",
                     o->schedule ? "schedule" : "skip", d->type_b->name);
}

/* Ranks have their parts of a program without sums, except in the megakernel. */
static qp_status check_ranks(const diff *d, qp_error *error)
{
    if (d->options->ranks <= 1 || d->type_b->whole || !d->options->sums) return QP_OK;
    return error_set(error, QP_UNSUPPORTED,
                     "--ranks %d compares ranks with one: of b, %s, without --sums; the megakernel "
                     "always has them",
                     d->options->ranks, d->type_b->name);
}

/* b, or the ranks that run it, each on a GPU of its own if b runs on one. */
static qp_status open_b(diff *d, machine_setup *setup, qp_error *error)
{
    const int ranks = d->options->ranks;
    if (ranks <= 1) return machine_open(d->type_b, setup, &d->b, error);
    if (d->type_b->on_gpu) {
        d->gpus = calloc(1, sizeof *d->gpus);
        if (!d->gpus) return error_no_memory(error, "ranks", sizeof *d->gpus);
        engine_ranks read = {.size = ranks};
        TRY(engine_ranks_read_gpus(d->options->gpus, d->options->exchange, &read, error));
        TRY(engine_ranks_device(&read, &d->device, error));
        TRY(cuda_ranks_open(d->gpus, &d->device, read.n_numbers ? read.numbers : NULL, ranks,
                            read.exchange, error));
        setup->gpus = d->gpus;
    }
    setup->inner = d->type_b;
    setup->n_ranks = ranks;
    if (d->type_b->whole) setup->cut = PLAN_REDUCE;
    return machine_open(&machine_ranks, setup, &d->b, error);
}

qp_status diff_open(diff *d, qp_error *error)
{
    const diff_options *o = d->options;
    uint32_t off, x_bits = 0;
    int threads;
    TRY(machine_type_find(o->a ? o->a : "reference", &d->type_a, error));
    TRY(machine_type_find(o->b ? o->b : "threads", &d->type_b, error));
    TRY(check_ranks(d, error));
    TRY(cpu_features_parse(o->cpu_mask ? o->cpu_mask : "", &off, error));
    if (o->activations && strcmp(o->activations, "auto") != 0)
        TRY(op_x_bits_parse(o->activations, &x_bits, error));
    TRY(check_schedule(d, error));
    TRY(choose_threads(o, &threads, error));
    TRY(thread_pool_create(threads, &d->pool, error));
    if (o->progress) d->progress = (progress){.sink = on_progress, .context = d};
    TRY(open_model(d, error));
    TRY(choose_steps(d, error));
    d->schedule = (schedule_options){.setting = (schedule_setting)o->setting,
                                     .assignment = (schedule_assignment)o->assignment,
                                     .memory_fraction = o->memory_fraction};
    d->setup = (machine_setup){.program = &d->program,
                               .pool = d->pool,
                               .cpu_features = cpu_features(off) | x_bits,
                               .progress = &d->progress,
                               .schedule = &d->schedule,
                               .order = o->order ? o->order : 1};
    TRY(machine_open(d->type_a, &d->setup, &d->a, error));
    machine_setup setup_b = d->setup;
    d->skip = (schedule_skip){.kinds = o->skip};
    d->schedule_b = d->schedule;
    if (o->skip) d->schedule_b.skip = &d->skip;
    setup_b.schedule = &d->schedule_b;
    setup_b.schedule_file = o->schedule;
    TRY(kernel_table_fill(&d->kernels, o->kernels, o->n_kernels, error));
    if (o->n_kernels) setup_b.kernels = &d->kernels;
    TRY(custom_kernels_fill(d->cuda_kernels, o->cuda_kernels, o->n_cuda_kernels, error));
    if (o->n_cuda_kernels) setup_b.cuda_kernels = d->cuda_kernels;
    return open_b(d, &setup_b, error);
}

void diff_close(diff *d)
{
    machine_close(&d->a);
    machine_close(&d->b);
    if (d->gpus) cuda_ranks_close(d->gpus);
    free(d->gpus);
    cuda_device_close(&d->device);
    diff_report_free(&d->report);
    thread_pool_destroy(d->pool);
    program_free(&d->program);
    model_close(d->model);
    free(d->own_tokens);
}
