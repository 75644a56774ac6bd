/* What the options of an engine ask for: its plan, its machine, kernels, CPU features, activations.
 */
#include "engine/open.h"

#include "base/cpu.h"
#include "base/names.h"
#include "lower/lower.h"
#include "op/op.h"
#include "vm/cuda/custom_kernels.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    DEFAULT_CONTEXT = 8192,
    DEFAULT_CHUNK = 512,
    DEVICE_CHUNK = 2048, /* a GPU wants more at once */
    LONE_CHUNK = 1024,   /* if all prompts are read in passes of one size, and there are */
    LONE_SESSIONS = 16,  /* fewer sessions than these, so that a pass has often only one prompt */
    DEFAULT_PAGE_SIZE = 16
};

bool option_is(const char *choice, const char *name)
{
    return choice && strcmp(choice, name) == 0;
}

bool option_is_automatic(const char *choice)
{
    return !choice || strcmp(choice, "auto") == 0;
}

/* The library opens files. What is none may be a model's name, as the program takes it. */
qp_status engine_check_model(const qp_engine_options *options, qp_error *error)
{
    const char *model = options->model;
    if (!model) return error_set(error, QP_INVALID, "no model was named");
    const bool named = strncmp(model, "hf:", 3) == 0;
    const bool file = name_ends_with(model, ".gguf") || strchr("./~", *model) ||
                      strncmp(model, "synthetic:", 10) == 0;
    if (!named && (file || access(model, F_OK) == 0)) return QP_OK;
    return error_set(error, QP_IO,
                     "%s: no such file or folder. The library opens files: if this is a model's "
                     "name, `quipu pull %s` fetches it and prints its path, and qp_pull() of "
                     "quipu_net.h does so in a program",
                     model, model);
}

bool engine_speculates(const qp_engine_options *options)
{
    return options->draft || (options->speculate && !option_is(options->speculate, "off"));
}

/* Rows of proposals in a pass: those of one sequence, or some of each of several. */
static int64_t speculated_rows(int64_t max_sessions)
{
    enum { EACH = 3 };
    const int64_t rows = EACH * max_sessions;
    return rows < SPECULATE_MOST ? SPECULATE_MOST : rows < SPECULATE_ROWS ? rows : SPECULATE_ROWS;
}

/* How many sequences fill a pass: each has at most a context's positions. */
static int64_t fillers(const plan_options *o)
{
    return (o->max_tokens + o->context - 1) / o->context;
}

/* Room for the rows that fill passes of fixed shapes: sequences of their own, and a page that all
 * of these rows write to. */
static void fix_shapes(plan_options *o)
{
    const int64_t pages = (o->context + o->page_size - 1) / o->page_size;
    o->n_pages = (o->n_pages ? o->n_pages : pages * o->max_sequences) + 1;
    if (o->max_tokens < o->max_sequences) o->max_tokens = o->max_sequences;
    if (o->max_outputs < o->max_sequences) o->max_outputs = o->max_sequences;
    o->max_sequences += fillers(o);
}

/* On a CPU the bits depend on nothing else anyway. */
bool engine_has_fixed_shapes(const qp_engine_options *options, bool on_gpu)
{
    return options->batch_invariant && on_gpu;
}

static qp_status choose_copies(const char *choice, plan_copies *out, qp_error *error)
{
    static const char *const names[] = {"auto", "on", "off"};
    *out = PLAN_COPIES_AUTO;
    if (!choice) return QP_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(choice, names[i]) == 0) {
            *out = (plan_copies)i;
            return QP_OK;
        }
    return error_set(error, QP_INVALID, "copies in BF16 must be auto, on or off, found \"%s\"",
                     choice);
}

static qp_status choose_act_type(const char *choice, dtype *out, qp_error *error)
{
    if (choice) *out = dtype_from_name(choice);
    if (*out == DTYPE_F32 || *out == DTYPE_BF16) return QP_OK;
    return error_set(error, QP_INVALID, "activations must be F32 or BF16, found \"%s\"", choice);
}

qp_status engine_choose_plan(const qp_engine_options *given, const model_config *config,
                             bool on_gpu, int64_t at_once, plan_options *out, qp_error *error)
{
    const bool fixed = engine_has_fixed_shapes(given, on_gpu);
    *out = plan_default_options(config);
    const int64_t usual = config_usual_context(config) < DEFAULT_CONTEXT
                              ? config_usual_context(config)
                              : DEFAULT_CONTEXT;
    out->context = given->context ? given->context : usual;
    out->max_sequences = given->max_sessions ? given->max_sessions : 1;
    const bool lone = fixed && out->max_sequences < LONE_SESSIONS;
    const int64_t chunk = lone ? LONE_CHUNK : on_gpu ? DEVICE_CHUNK : DEFAULT_CHUNK;
    out->max_tokens = given->chunk ? given->chunk : chunk;
    if (out->max_tokens > 0 && out->max_tokens < out->max_sequences)
        out->max_tokens = out->max_sequences;
    out->max_outputs = given->max_outputs ? given->max_outputs : out->max_sequences;
    if (engine_speculates(given)) out->max_outputs += speculated_rows(out->max_sequences);
    out->page_size = given->page_size ? given->page_size : DEFAULT_PAGE_SIZE;
    out->n_pages = given->pages;
    out->adapters_at_once = at_once;
    out->fuse = given->fuse;
    out->target = on_gpu ? PLAN_FOR_ANY : PLAN_FOR_CPU;
    TRY(lower_parse_rules(given->rules, out, error));
    if (given->plan) TRY(plan_form_find(given->plan, &out->form, error));
    out->few_alike = engine_speculates(given); /* unless the megakernel verifies */
    if (fixed) fix_shapes(out);
    TRY(choose_copies(given->bf16_copies, &out->bf16_copies, error));
    if (given->kv_type) out->kv_type = dtype_from_name(given->kv_type);
    if (out->kv_type == DTYPE_COUNT)
        return error_set(error, QP_INVALID,
                         "the KV cache must be F32, F16, BF16 or F8, found \"%s\"", given->kv_type);
    return choose_act_type(given->act_type, &out->act_type, error);
}

/* The machine that is asked for; NULL: that is left to the engine. */
qp_status engine_choose_machine(const qp_engine_options *options, const machine_type **out,
                                qp_error *error)
{
    const bool padded = option_is(options->plan, "padded");
    const bool paged = !options->plan || option_is(options->plan, "paged");
    const bool float32 = !options->act_type || option_is(options->act_type, "F32");
    *out = NULL;
    if (!option_is_automatic(options->exec)) TRY(machine_type_find(options->exec, out, error));
    if (paged && float32) return QP_OK;
    if (!*out) *out = padded ? &machine_operators : &machine_threads;
    if (paged && ((*out)->on_gpu || option_is(options->device, "cuda")))
        return error_set(error, QP_UNSUPPORTED,
                         "activations in %s are for the CPU: leave out --act-type, or the --device "
                         "or --exec that asks for a GPU",
                         options->act_type);
    if ((*out)->on_gpu)
        return error_set(error, QP_UNSUPPORTED,
                         "the plan %s runs on the CPU, and --exec %s on a GPU: leave one out",
                         options->plan, (*out)->name);
    if (option_is(options->device, "cuda"))
        return error_set(error, QP_UNSUPPORTED,
                         "the plan %s runs on the CPU, but --device cuda asks for a GPU: leave one "
                         "out",
                         options->plan);
    return QP_OK;
}

/* A token of a small model reads no more than this. */
enum { SMALL_MODEL_BYTES = 256 << 20 };

uint32_t engine_usual_activations(const model *model, uint32_t cpu_features)
{
    if (model_read_bytes(model) <= SMALL_MODEL_BYTES) return OP_X_16;
    return cpu_multiplies_bf16(cpu_features) ? OP_X_BF16 : 0;
}

static dtype stored_type(const qp_engine *e)
{
    return model_get_weight(e->model, WEIGHT_FFN_DOWN, 0)->weight.type;
}

/* Why no product of the model takes activations so; NULL: one does. */
static const char *no_activations(const qp_engine *e, const machine_type *type, uint32_t bits)
{
    const dtype stored = stored_type(e);
    if (e->device.context)
        return stored == DTYPE_F8_128 ? NULL : "a GPU rounds them for weights in FP8 alone";
    if (type->references) return "reference kernels do not round them";
    if (bits & OP_X_BF16)
        return stored != DTYPE_BF16             ? "the model's weights are not in BF16"
               : !cpu_has_bf16(e->cpu_features) ? "this needs a processor with BF16 products"
                                                : NULL;
    if (!dtype_is_quantized(stored) || stored == DTYPE_F8_128)
        return "the model's weights are not quantised";
    return NULL;
}

/* A choice that has no effect is a warning. */
static void say_activations(const qp_engine *e, const char *choice, const machine_type *type,
                            uint32_t bits)
{
    if (option_is_automatic(choice) && stored_type(e) != DTYPE_BF16)
        bits &= ~(uint32_t)OP_X_BF16; /* of other matrices, if there are any */
    const char *why = no_activations(e, type, bits);
    char message[160];
    if (!why)
        snprintf(message, sizeof message, "%s products take activations %s",
                 bits & OP_X_BF16 ? "BF16" : "quantised",
                 e->device.context ? "rounded to FP8" : op_x_bits_text(bits));
    else if (option_is_automatic(choice) || bits & OP_X_FLOAT)
        return;
    else
        snprintf(message, sizeof message, "activations are not %s: %s", op_x_bits_text(bits), why);
    engine_say(e, why ? QP_LOG_WARNING : QP_LOG_INFO, message);
}

void engine_fp8_on_gpu(const char *activations, bool can, model_options *out)
{
    const bool automatic = option_is_automatic(activations);
    out->fp8_as_bf16 = !can || !(automatic || strcmp(activations, "8") == 0);
    out->fp8_by_rows_only = automatic;
}

/* How products take activations: see op_x_bits_parse(). */
qp_status engine_choose_activations(qp_engine *e, const qp_engine_options *options,
                                    const machine_type *type, qp_error *error)
{
    uint32_t bits = 0;
    const char *const choice = options->activations;
    if (option_is_automatic(choice))
        bits = engine_usual_activations(e->model, e->cpu_features);
    else
        TRY(op_x_bits_parse(choice, &bits, error));
    if (!e->device.context && !type->references && cpu_slow_form(e->cpu_features))
        engine_say(e, QP_LOG_WARNING, cpu_slow_form(e->cpu_features));
    e->cpu_features |= bits;
    say_activations(e, choice, type, bits);
    return QP_OK;
}

qp_status engine_choose_features(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    uint32_t off;
    TRY(cpu_features_parse(options->cpu_mask ? options->cpu_mask : "", &off, error));
    e->cpu_features = cpu_features(off);
    return QP_OK;
}

static qp_status take_cuda_kernels(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    e->has_cuda_kernels = options->n_cuda_kernels > 0;
    if (!e->has_cuda_kernels) return QP_OK;
    if (options->n_kernels > 0)
        return error_set(error, QP_UNSUPPORTED,
                         "custom kernels are given for the CPU and for a GPU, and a model "
                         "runs on one of them: leave out one kind");
    if (option_is(options->device, "cpu"))
        return error_set(error, QP_UNSUPPORTED,
                         "custom kernels for a GPU run there, but --device cpu excludes that: "
                         "leave it out");
    if (e->ranks.size > 1)
        return error_set(error, QP_UNSUPPORTED,
                         "custom kernels for a GPU run on one GPU, not on %d: leave --ranks "
                         "and --gpus out",
                         e->ranks.size);
    return custom_kernels_fill(e->cuda_kernels, options->cuda_kernels, options->n_cuda_kernels,
                               error);
}

qp_status engine_take_kernels(qp_engine *e, const qp_engine_options *options, qp_error *error)
{
    TRY(take_cuda_kernels(e, options, error));
    e->has_kernels = options->n_kernels > 0;
    if (!e->has_kernels) return QP_OK;
    if (option_is(options->device, "cuda"))
        return error_set(error, QP_UNSUPPORTED,
                         "custom kernels run on the CPU, but --device cuda excludes that: "
                         "leave it out");
    return kernel_table_fill(&e->kernels, options->kernels, options->n_kernels, error);
}
