/* The memory and the launches of a run on the GPU, as text: see cuda_print.h. */
#include "inspect/cuda_print.h"

#include "base/output.h"
#include "engine/open.h"
#include "inspect/launch_print.h"
#include "inspect/pass_launches.h"
#include "op/linear/linear_f8_cuda.h"
#include "vm/machine.h"
#include "vm/mega/megakernel.h"
#include "lower/lower.h"
#include "lower/print.h"

#include <stdio.h>
#include <string.h>

/* The memory that a model needs, and the memory of the GPU. */
typedef struct memory_view {
    const model *model;
    plan_options options;
    char device[96]; /* the GPU's name; "": --memory was given */
    bool has_mega;
    int n_blocks;
    uint64_t available;      /* free bytes; 0: unknown */
    qp_error why;            /* why `available` is unknown */
    machine_bytes operators; /* bytes of the machine `cuda` */
    machine_bytes bytes;     /* bytes with the megakernel too, if it runs the model */
    int64_t largest_context; /* 0: none fits */
    int64_t tokens;          /* of the pass */
} memory_view;

/* Takes the memory of the GPU here, or the memory that was given. */
static void look_around(memory_view *v, uint64_t memory)
{
    cuda_device device = {0};
    size_t free_bytes = 0;
    v->n_blocks = CUDA_USUAL_MULTIPROCESSORS;
    v->has_mega = true;
    if (memory) {
        v->available = memory;
        return;
    }
    qp_status status = cuda_device_open(&device, &v->why);
    if (status == QP_OK) {
        snprintf(v->device, sizeof v->device, "%s", device.name);
        v->n_blocks = device.n_multiprocessors;
        v->has_mega = cuda_device_has(&device, CUDA_MEGA_NEEDS);
        status = cuda_device_free_memory(&device, &free_bytes, &v->why);
    }
    if (status == QP_OK) v->available = free_bytes;
    cuda_device_close(&device);
}

static qp_status count(memory_view *v, int64_t context, qp_error *error)
{
    const model_config *config = model_get_config(v->model);
    plan_options options = v->options;
    program program;
    options.context = context;
    TRY(lower_build(config, v->model, &options, &program, error));
    const schedule_options blocks = {.workers = v->n_blocks};
    const machine_setup setup = {.program = &program, .schedule = &blocks};
    qp_status status = machine_count_bytes(&machine_cuda, &setup, &v->operators, error);
    v->bytes = v->operators;
    if (status == QP_OK && v->has_mega)
        status = machine_count_bytes(&machine_megakernel, &setup, &v->bytes, error);
    program_free(&program);
    return status;
}

/* Finds the largest context that fits by bisection over whole pages, up to the model's own length;
 * for the machine `cuda`, which needs the least memory. */
static int64_t find_largest(const memory_view *v)
{
    memory_view probe = *v;
    const int64_t page_size = v->options.page_size;
    int64_t most = config_usual_context(model_get_config(v->model));
    int64_t low = 0, high = most / page_size + 1;
    if (count(&probe, most, NULL) == QP_OK && probe.operators.total <= v->available) return most;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        bool fits = count(&probe, middle * page_size, NULL) == QP_OK &&
                    probe.operators.total <= v->available;
        *(fits ? &low : &high) = middle;
    }
    return low * page_size;
}

/* A part of the memory: its name for people, and its JSON key. */
typedef struct memory_part {
    const char *name, *key;
    uint64_t bytes;
} memory_part;
enum { N_PARTS = 11 };

static void list_parts(const memory_view *v, memory_part parts[N_PARTS])
{
    const memory_part all[N_PARTS] = {
        {"weights", "weights", v->bytes.weights},
        {"arena", "arena", v->bytes.activations},
        {"KV cache", "kv_cache", v->bytes.kv_cache},
        {"RoPE table", "rope_table", v->bytes.rope_table},
        {"requests", "requests", v->bytes.state},
        {"batch state", "batch_state", v->bytes.inputs},
        {"workspace", "workspace", v->bytes.workspace},
        {"weights again", "weights_again", v->bytes.weights_again},
        {"megakernel", "megakernel", v->bytes.tables},
        {"everything", "total", v->bytes.total},
        {"copies", "copies", v->bytes.copies},
    };
    memcpy(parts, all, sizeof all);
}

static const char *verdict(const memory_view *v)
{
    if (v->bytes.total <= v->available) return "fits";
    return v->operators.total <= v->available ? "fits without the megakernel (--exec cuda)"
                                              : "does not fit";
}

static void print_text(const memory_view *v, strbuf *out)
{
    memory_part parts[N_PARTS];
    list_parts(v, parts);
    strbuf_puts(out, "\non the GPU            bytes         MiB\n");
    for (int i = 0; i < N_PARTS; i++)
        strbuf_printf(out, "%-13s %13llu %11.2f\n", parts[i].name,
                      (unsigned long long)parts[i].bytes, (double)parts[i].bytes / 0x1p20);
    if (v->bytes.copies > 0)
        strbuf_puts(out, "copies of weights, for batches and prompts, are made if there is room\n");
    if (!v->available) {
        strbuf_printf(out, "\nno GPU to compare this with (give its memory with --memory): %s\n",
                      v->why.message);
        return;
    }
    strbuf_printf(out,
                  "\n%s%s%.2f GiB are free: the run %s; the largest context that "
                  "fits (--exec cuda) is %lld\n",
                  v->device, *v->device ? ": " : "", (double)v->available / 0x1p30, verdict(v),
                  (long long)v->largest_context);
}

static qp_status print_json(const memory_view *v, const pass_launches *launches, strbuf *out,
                            qp_error *error)
{
    cJSON *root = cJSON_CreateObject(), *bytes = cJSON_AddObjectToObject(root, "bytes");
    memory_part parts[N_PARTS];
    list_parts(v, parts);
    for (int i = 0; i < N_PARTS; i++)
        cJSON_AddNumberToObject(bytes, parts[i].key, (double)parts[i].bytes);
    if (*v->device) cJSON_AddStringToObject(root, "device", v->device);
    cJSON_AddItemToObject(root, "launches", launch_list_json(&launches->setting, &launches->list));
    if (v->available) {
        cJSON_AddNumberToObject(root, "available", (double)v->available);
        cJSON_AddStringToObject(root, "verdict", verdict(v));
        cJSON_AddNumberToObject(root, "largest_context", (double)v->largest_context);
    }
    return output_json(root, out, error);
}

static qp_status print_run(memory_view *v, const cuda_print_options *o, pass_launches *launches,
                           strbuf *out, qp_error *error)
{
    plan_options options = v->options;
    TRY(pass_launches_make(v->model, &options, v->tokens, o->sequences, o->arch, launches, error));
    look_around(v, o->memory);
    TRY(count(v, options.context, error));
    if (v->available) v->largest_context = find_largest(v);
    if (o->json) return print_json(v, launches, out, error);
    pass_launches_print(launches, out);
    if (v->tokens <= 8 && v->has_mega && o->ranks <= 1)
        strbuf_puts(out,
                    "\nthese are the launches of --exec cuda; passes of so few tokens run in the "
                    "megakernel where it takes the model: quipu schedule --device cuda lists "
                    "its instructions\n");
    if (o->verbose) TRY(pass_launches_explain(launches, out, error));
    print_text(v, out);
    return QP_OK;
}

qp_status cuda_print_run(const cuda_print_options *o, strbuf *out, qp_error *error)
{
    model *model;
    model_options sizes_only = {
        .sizes_only = true, .config_is_enough = true, .adapters = o->adapters};
    engine_fp8_on_gpu(o->activations,
                      o->ranks <= 1 && (CUDA_F8_NEEDS & ~pass_launches_features(o->arch)) == 0,
                      &sizes_only);
    pass_launches launches = {0};
    TRY(model_open(o->model, &sizes_only, &model, error));
    memory_view v = {.model = model,
                     .options = plan_default_options(model_get_config(model)),
                     .tokens = o->tokens};
    if (o->context) v.options.context = o->context;
    qp_status status = plan_print_tokens(&v.tokens, v.options.context, o->sequences, error);
    v.options.max_tokens = v.tokens > o->sequences ? v.tokens : o->sequences;
    v.options.max_sequences = v.options.max_outputs = o->sequences;
    v.options.page_size = o->page_size;
    v.options.kv_type = dtype_from_name(o->kv_type);
    v.options.ranks = o->ranks ? (int)o->ranks : 1;
    v.options.rank = (int)o->rank;
    v.options.cut = o->reduce ? PLAN_REDUCE : PLAN_GATHER;
    if (status == QP_OK) status = lower_parse_rules(o->rules, &v.options, error);
    if (status == QP_OK) status = print_run(&v, o, &launches, out, error);
    pass_launches_free(&launches);
    model_close(model);
    return status;
}
