/* quipu info and quipu doctor: a model's properties, and this machine's. */
#include "cli/cli.h"

#include "base/cpu.h"
#include "base/platform.h"
#include "base/status.h"
#include "inspect/config_print.h"
#include "inspect/measure.h"
#include "inspect/modules_print.h"
#include "inspect/start.h"
#include "text/json_string.h"
#include "workbench/workbench.h"

#include <stdlib.h>
#include <string.h>

qp_status command_info(const cli_call *call)
{
    const char *model;
    char *text;
    TRY(cli_model_path(call, &model));
    const cli_settings *s = call->settings;
    const bool json = s->json;
    TRY(s->config                 ? config_describe(model, &text, call->error)
        : s->modules || s->module ? modules_describe(model, s->module, json, &text, call->error)
                                  : qp_describe_model(model, json, &text, call->error));
    qp_status status = cli_write(text, strlen(text), call->error);
    free(text);
    return status;
}

/* What doctor found out about this machine. */
typedef struct findings {
    const char *version;
    cpu_description cpu;
    strbuf features;  /* CPU features that kernels use: "avx2 fma" */
    uint64_t memory;  /* bytes available */
    char driver[256]; /* the line of NVIDIA's driver, or empty */
    bool has_gpu;
    measure_gpu gpu;
    measure_gpus gpus; /* all of them */
    qp_error why_no_gpu;
    const char *model; /* the default model's path, or NULL */
    qp_error why_no_model;
    bool has_start; /* a model was named */
    start_times start;
} findings;

static void examine(const cli_call *call, findings *f)
{
    f->version = call->program->version;
    cpu_describe(&f->cpu);
    cpu_features_print(cpu_features(0), &f->features);
    f->memory = platform_free_memory();
    FILE *version = fopen("/proc/driver/nvidia/version", "r");
    if (version && !fgets(f->driver, sizeof f->driver, version)) f->driver[0] = '\0';
    if (version) fclose(version);
    f->driver[strcspn(f->driver, "\n")] = '\0';
    f->has_gpu = measure_find_gpu(&f->gpu, &f->why_no_gpu) == QP_OK;
    if (!f->has_gpu || measure_list_gpus(&f->gpus, NULL) != QP_OK) f->gpus.count = 0;
    cli_call silent = *call;
    silent.error = &f->why_no_model;
    if (cli_model_path(&silent, &f->model) != QP_OK) f->model = NULL;
}

/* Opens the model that was named, and runs its first pass. */
static qp_status examine_start(const cli_call *call, findings *f)
{
    qp_engine *engine;
    if (!call->settings->model && !call->settings->hub) return QP_OK;
    f->has_start = true;
    TRY(cli_open_engine_at_once(call, 1, &engine));
    qp_status status = start_measure(engine, &f->start, call->error);
    qp_engine_close(engine);
    return status;
}

static void print_start(const start_times *s, strbuf *out)
{
    strbuf_printf(out, "start            %.3f s to the first logits; %.3f s for the next\n",
                  (double)s->total_ns * 1e-9, (double)s->second_ns * 1e-9);
    for (int i = 0; i < s->n_stages; i++)
        strbuf_printf(out, "  %8.3f s %5.1f%%  %s\n", (double)s->stages[i].ns * 1e-9,
                      100 * (double)s->stages[i].ns / (double)s->total_ns, s->stages[i].name);
}

/* The numbers for --gpus, and which GPUs reach each other's memory, as ranks of one model must. */
static void print_gpus(const measure_gpus *gpus, strbuf *out)
{
    for (int i = 0; i < gpus->count && gpus->count > 1; i++) {
        const char *separator = "; reaches GPU ";
        strbuf_printf(out, "GPU %-12d %s, %d multiprocessors", i, gpus->of[i].name,
                      gpus->of[i].n_multiprocessors);
        for (int j = 0; j < gpus->count; j++) {
            const cuda_link *link = &gpus->links[i][j];
            if (!link->direct) continue;
            strbuf_printf(out, "%s%d%s", separator, j, link->atomics ? "" : " without atomics");
            separator = ", ";
        }
        strbuf_puts(out, "\n");
    }
}

static void print_findings(const findings *f, strbuf *out)
{
    const cpu_description *cpu = &f->cpu;
    const char *features = f->features.length ? f->features.data : "none that are used";
    strbuf_printf(out, "version          %s\n", f->version);
    strbuf_printf(out, "processor        %s\n", *cpu->model ? cpu->model : "unknown");
    strbuf_printf(out, "processors       %d for this process\n", cpu->processors);
    strbuf_printf(out, "features         %s\n", features);
    strbuf_printf(out, "caches           L1d %zu KiB, L2 %zu KiB, L3 %zu KiB\n", cpu->l1d >> 10,
                  cpu->l2 >> 10, cpu->l3 >> 10);
    strbuf_printf(out, "memory           %.1f GiB available\n", (double)f->memory / 0x1p30);
    workbench_sandbox(false, out);
    strbuf_printf(out, "NVIDIA driver    %s\n", *f->driver ? f->driver : "none");
    if (f->has_gpu)
        strbuf_printf(out, "device           cuda: %s, %d multiprocessors\n", f->gpu.name,
                      f->gpu.n_multiprocessors);
    else
        strbuf_printf(out, "device           cpu: %d threads\n", cpu->processors);
    print_gpus(&f->gpus, out);
    if (f->gpus.count)
        strbuf_printf(out, "NCCL             %s\n", *f->gpus.nccl ? f->gpus.nccl : "none");
    if (!f->has_gpu && *f->driver)
        strbuf_printf(out, "no GPU           %s\n", f->why_no_gpu.message);
    strbuf_printf(out, "%s    %s\n", f->has_start ? "model        " : "default model",
                  f->model ? f->model : f->why_no_model.message);
    if (f->has_start) print_start(&f->start, out);
}

/* "key": "text", or null where the text is NULL or empty. */
static void put_text(strbuf *out, const char *key, const char *text)
{
    strbuf_printf(out, "\"%s\": ", key);
    if (text && *text)
        json_put_string(out, text, strlen(text));
    else
        strbuf_puts(out, "null");
}

/* "avx2 fma" as ["avx2", "fma"]. */
static void put_words(strbuf *out, const char *text)
{
    const char *separator = "";
    strbuf_puts(out, "[");
    for (const char *at = text + strspn(text, " ,"); *at; at += strspn(at, " ,")) {
        size_t length = strcspn(at, " ,");
        strbuf_puts(out, separator);
        json_put_string(out, at, length);
        separator = ", ";
        at += length;
    }
    strbuf_puts(out, "]");
}

static void put_gpus(strbuf *out, const measure_gpus *gpus)
{
    strbuf_puts(out, "[");
    for (int i = 0; i < gpus->count; i++) {
        const char *separator = "";
        strbuf_printf(out, "%s{", i ? ", " : "");
        put_text(out, "name", gpus->of[i].name);
        strbuf_printf(out, ", \"multiprocessors\": %d, \"reaches\": [",
                      gpus->of[i].n_multiprocessors);
        for (int j = 0; j < gpus->count; j++) {
            const cuda_link *link = &gpus->links[i][j];
            if (!link->direct) continue;
            strbuf_printf(out, "%s{\"gpu\": %d, \"atomics\": %s}", separator, j,
                          link->atomics ? "true" : "false");
            separator = ", ";
        }
        strbuf_puts(out, "]}");
    }
    strbuf_puts(out, "]");
}

static void put_start(strbuf *out, const start_times *s)
{
    strbuf_printf(out, ",\n  \"start\": {\"seconds\": %.6f, \"next_seconds\": %.6f, \"stages\": [",
                  (double)s->total_ns * 1e-9, (double)s->second_ns * 1e-9);
    for (int i = 0; i < s->n_stages; i++) {
        strbuf_puts(out, i ? ", {" : "{");
        put_text(out, "name", s->stages[i].name);
        strbuf_printf(out, ", \"seconds\": %.6f}", (double)s->stages[i].ns * 1e-9);
    }
    strbuf_puts(out, "]}");
}

static void print_findings_json(const findings *f, strbuf *out)
{
    const cpu_description *cpu = &f->cpu;
    strbuf_puts(out, "{\n  ");
    put_text(out, "version", f->version);
    strbuf_puts(out, ",\n  \"cpu\": {");
    put_text(out, "name", cpu->model);
    strbuf_printf(out, ", \"processors\": %d, \"features\": ", cpu->processors);
    put_words(out, strbuf_text(&f->features));
    strbuf_printf(out, ", \"l1d_bytes\": %zu, \"l2_bytes\": %zu, \"l3_bytes\": %zu},\n", cpu->l1d,
                  cpu->l2, cpu->l3);
    strbuf_printf(out, "  \"memory_available_bytes\": %llu,\n", (unsigned long long)f->memory);
    workbench_sandbox(true, out);
    put_text(out, "nvidia_driver", f->driver);
    strbuf_puts(out, ",\n  \"gpu\": ");
    if (f->has_gpu) {
        strbuf_puts(out, "{");
        put_text(out, "name", f->gpu.name);
        strbuf_printf(out, ", \"multiprocessors\": %d}", f->gpu.n_multiprocessors);
    } else {
        strbuf_puts(out, "null");
    }
    strbuf_puts(out, ",\n  \"gpus\": ");
    put_gpus(out, &f->gpus);
    strbuf_puts(out, ",\n  ");
    put_text(out, "nccl", f->gpus.nccl);
    strbuf_printf(out, ",\n  \"device\": \"%s\",\n  ", f->has_gpu ? "cuda" : "cpu");
    put_text(out, f->has_start ? "model" : "default_model", f->model);
    if (f->has_start) put_start(out, &f->start);
    strbuf_puts(out, "\n}\n");
}

qp_status command_doctor(const cli_call *call)
{
    findings f = {0};
    strbuf text = {0};
    qp_status status = examine_start(call, &f); /* first, because finding a GPU starts the driver */
    examine(call, &f);
    if (status == QP_OK) {
        (call->settings->json ? print_findings_json : print_findings)(&f, &text);
        status = text.failed ? error_no_memory(call->error, "the findings", 0)
                             : cli_write(text.data, text.length, call->error);
    }
    strbuf_free(&f.features);
    strbuf_free(&text);
    return status;
}
