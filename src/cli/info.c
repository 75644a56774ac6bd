/* quipu info and quipu doctor: what a model is, and what this machine has. */
#include "cli/cli.h"

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/status.h"
#include "inspect/measure.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

qp_status command_info(const cli_call *call)
{
    const char *model;
    char *text;
    TRY(cli_model_path(call, &model));
    TRY(qp_describe_model(model, call->settings->json, &text, call->error));
    qp_status status = cli_write(text, strlen(text), call->error);
    free(text);
    return status;
}

/* What doctor found: a line each, or a member each. */
typedef struct findings {
    bool json;
    strbuf text;
} findings;

static void found(findings *f, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void found(findings *f, const char *key, const char *format, ...)
{
    char value[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    if (!f->json) {
        strbuf_printf(&f->text, "%-16s %s\n", key, value);
        return;
    }
    strbuf_puts(&f->text, f->text.length ? ",\n  " : "{\n  ");
    cli_json_string(&f->text, key, strlen(key));
    strbuf_puts(&f->text, ": ");
    cli_json_string(&f->text, value, strlen(value));
}

/* The driver, and what --device auto would take. */
static void examine_devices(findings *f, int processors)
{
    FILE *version = fopen("/proc/driver/nvidia/version", "r");
    char line[256] = "";
    measure_gpu gpu;
    qp_error why = {0};
    if (version && !fgets(line, sizeof line, version)) line[0] = '\0';
    if (version) fclose(version);
    line[strcspn(line, "\n")] = '\0';
    found(f, "NVIDIA driver", "%s", *line ? line : "none");
    if (measure_find_gpu(&gpu, &why) == QP_OK) {
        found(f, "device", "cuda: %s, %d multiprocessors", gpu.name, gpu.n_multiprocessors);
        return;
    }
    found(f, "device", "cpu: %d threads", processors);
    if (*line) found(f, "no GPU", "%s", why.message);
}

qp_status command_doctor(const cli_call *call)
{
    findings f = {.json = call->settings->json};
    cpu_description cpu;
    strbuf features = {0};
    cpu_describe(&cpu);
    cpu_features_print(cpu_features(0), &features);
    found(&f, "version", "%s", call->program->version);
    found(&f, "processor", "%s", *cpu.model ? cpu.model : "unknown");
    found(&f, "processors", "%d for this process", cpu.processors);
    found(&f, "features", "%s", features.length ? strbuf_text(&features) : "none that are used");
    found(&f, "caches", "L1d %zu KiB, L2 %zu KiB, L3 %zu KiB", cpu.l1d >> 10, cpu.l2 >> 10,
          cpu.l3 >> 10);
    found(&f, "memory", "%.1f GiB available", (double)buffer_available() / 0x1p30);
    examine_devices(&f, cpu.processors);
    qp_error missing = {0};
    const char *model = "";
    cli_call silent = *call;
    silent.error = &missing;
    bool there = cli_model_path(&silent, &model) == QP_OK;
    found(&f, "default model", "%s", there ? model : missing.message);
    if (f.json) strbuf_puts(&f.text, "\n}\n");
    qp_status status = f.text.failed ? error_no_memory(call->error, "the findings", 0)
                                     : cli_write(f.text.data, f.text.length, call->error);
    strbuf_free(&features);
    strbuf_free(&f.text);
    return status;
}
