/* Writes traces: see trace.h. */
#include "workbench/trace.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "quipu.h"
#include "base/strbuf.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The GPU's name, from the driver's files: "NVIDIA H100 80GB HBM3". */
static void gpu_name(char *name, size_t size)
{
    static const char gpus[] = "/proc/driver/nvidia/gpus";
    char path[512], line[256];
    snprintf(name, size, "NVIDIA GPU");
    DIR *folder = opendir(gpus);
    struct dirent *entry = folder ? readdir(folder) : NULL;
    while (entry && entry->d_name[0] == '.')
        entry = readdir(folder);
    snprintf(path, sizeof path, "%s/%.255s/information", gpus, entry ? entry->d_name : "none");
    if (folder) closedir(folder);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "Model:", 6) != 0) continue;
        const char *model = line + 6 + strspn(line + 6, " \t");
        snprintf(name, size, "%.*s", (int)strcspn(model, "\n"), model);
    }
    if (file) fclose(file);
}

static cJSON *environment_json(bool device)
{
    char name[128];
    cpu_description cpu;
    cpu_describe(&cpu);
    snprintf(name, sizeof name, "%.120s", cpu.model[0] ? cpu.model : "CPU");
    if (device) gpu_name(name, sizeof name);
    cJSON *environment = cJSON_CreateObject(), *libs = cJSON_AddObjectToObject(environment, "libs");
    cJSON_AddStringToObject(environment, "hardware", name);
    cJSON_AddStringToObject(libs, "quipu", QP_VERSION);
    return environment;
}

/* JSON has no infinities; the format writes them as strings. */
static void add_error(cJSON *tree, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(tree, key, value);
    else
        cJSON_AddStringToObject(tree, key, isnan(value) ? "NaN" : "Infinity");
}

static void add_log(cJSON *tree, const char *detail, const char *log)
{
    strbuf text = {0};
    strbuf_puts(&text, detail);
    if (log[0]) strbuf_printf(&text, "%s%s", detail[0] ? "\n" : "", log);
    cJSON_AddStringToObject(tree, "log", strbuf_text(&text));
    strbuf_free(&text);
}

static cJSON *evaluation_json(const evaluation *evaluation, const char *log, bool device)
{
    const check_verdict *verdict = &evaluation->verdict;
    char when[CLOCK_UTC_SIZE];
    clock_utc(time(NULL), when);
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "status", check_status_name(verdict->status));
    cJSON_AddItemToObject(tree, "environment", environment_json(device));
    cJSON_AddStringToObject(tree, "timestamp", when);
    add_log(tree, verdict->detail, log);
    if (verdict->status == CHECK_PASSED || verdict->status == CHECK_INCORRECT_NUMERICAL) {
        cJSON *correctness = cJSON_AddObjectToObject(tree, "correctness");
        add_error(correctness, "max_relative_error", verdict->relative_error);
        add_error(correctness, "max_absolute_error", verdict->absolute_error);
    }
    if (verdict->status != CHECK_PASSED) return tree;
    const double latency = evaluation->latency_ms, reference = evaluation->reference_ms;
    cJSON *performance = cJSON_AddObjectToObject(tree, "performance");
    cJSON_AddNumberToObject(performance, "latency_ms", latency);
    cJSON_AddNumberToObject(performance, "reference_latency_ms", reference);
    cJSON_AddNumberToObject(performance, "speedup_factor", latency > 0 ? reference / latency : 0);
    return tree;
}

cJSON *trace_json(const char *definition, cJSON *workload, const char *solution,
                  const evaluation *evaluation, const char *log, bool device)
{
    cJSON *trace = cJSON_CreateObject();
    cJSON_AddStringToObject(trace, "definition", definition);
    cJSON_AddItemToObject(trace, "workload", workload);
    cJSON_AddStringToObject(trace, "solution", solution);
    cJSON_AddItemToObject(trace, "evaluation", evaluation_json(evaluation, log, device));
    return trace;
}
