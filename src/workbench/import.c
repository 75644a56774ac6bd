/* Reads a FlashInfer-Bench solution in C or CUDA, checks and measures it on the workloads of its
 * definition, and prints a trace for each workload.
 *
 * A solution's entry point is a kernel as in quipu_kernel.h: "rms_norm.c::rms_norm_kernel". Its
 * sources are untrusted: their paths must stay inside a temporary folder.
 */
#define _XOPEN_SOURCE 700 /* nftw */
#include "quipu.h"
#include "base/cpu.h"
#include "base/json.h"
#include "workbench/exchange.h"
#include "base/files.h"
#include "base/output.h"
#include "workbench/timing.h"
#include "workbench/workbench.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SOLUTION_MAX_BYTES = 16 << 20, SOLUTION_MAX_FILES = 64 };

typedef struct solution {
    const char *name, *language;
    const definition *definition;
    const op_info *op;
    const cJSON *sources;
    char entry[256]; /* file of the entry point */
    char folder[64]; /* temporary folder of the sources */
} solution;

static qp_status need_string(const cJSON *object, const char *key, const char *where,
                             const char **out, qp_error *error)
{
    *out = NULL;
    TRY(json_get_string(object, key, where, out, error));
    return *out ? QP_OK : error_set(error, QP_FORMAT, "%s: \"%s\" is missing", where, key);
}

static qp_status read_entry(const char *path, const char *entry, solution *out, qp_error *error)
{
    char expected[128];
    bool cuda = strcmp(out->language, "cuda") == 0;
    const char *colons = strstr(entry, "::");
    snprintf(expected, sizeof expected, "%s_%s", out->op->name, cuda ? "launch" : "kernel");
    if (!colons || (size_t)(colons - entry) >= sizeof out->entry ||
        strcmp(colons + 2, expected) != 0)
        return error_set(error, QP_FORMAT,
                         "%s: entry_point must be FILE::%s for %s, found \"%.200s\"", path,
                         expected, out->definition->name, entry);
    snprintf(out->entry, sizeof out->entry, "%.*s", (int)(colons - entry), entry);
    return QP_OK;
}

static qp_status read_solution(const char *path, const cJSON *tree, solution *out, qp_error *error)
{
    const char *definition, *entry;
    TRY(need_string(tree, "name", path, &out->name, error));
    TRY(need_string(tree, "definition", path, &definition, error));
    const cJSON *spec = json_get(tree, "spec");
    TRY(need_string(spec, "language", path, &out->language, error));
    TRY(need_string(spec, "entry_point", path, &entry, error));
    out->definition = definition_find(definition);
    if (!out->definition)
        return error_set(
            error, QP_UNSUPPORTED,
            "%s: definition '%.100s' is not among those that `quipu ops export` writes", path,
            definition);
    static const char *const languages[] = {"c", "cpp", "cuda"};
    bool known = false;
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++)
        known = known || strcmp(out->language, languages[i]) == 0;
    if (!known)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: language must be c, cpp or cuda, found '%.40s'", path, out->language);
    out->op = op_find(out->definition->op);
    out->sources = json_get(tree, "sources");
    if (!cJSON_IsArray(out->sources) || cJSON_GetArraySize(out->sources) > SOLUTION_MAX_FILES)
        return error_set(error, QP_FORMAT, "%s: \"sources\" must be an array of at most %d files",
                         path, SOLUTION_MAX_FILES);
    return read_entry(path, entry, out, error);
}

/* Whether a path stays below the folder that it is relative to. */
static bool is_inside(const char *path)
{
    if (path[0] == '/' || path[0] == '\0' || strlen(path) > 200) return false;
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        if (strncmp(part, "..", 2) == 0) return false;
    }
    return true;
}

static qp_status write_sources(const char *path, solution *solution, qp_error *error)
{
    bool entry = false;
    snprintf(solution->folder, sizeof solution->folder, "/tmp/quipu-XXXXXX");
    if (!mkdtemp(solution->folder)) {
        solution->folder[0] = '\0';
        return error_set(error, QP_IO, "no folder can be made in /tmp");
    }
    const cJSON *source;
    cJSON_ArrayForEach(source, solution->sources)
    {
        const char *name, *content;
        char to[512];
        TRY(need_string(source, "path", path, &name, error));
        TRY(need_string(source, "content", path, &content, error));
        if (!is_inside(name))
            return error_set(error, QP_FORMAT,
                             "%s: a source's path must lie inside, found '%.200s'", path, name);
        snprintf(to, sizeof to, "%s/%s", solution->folder, name);
        TRY(files_write(to, content, strlen(content), error));
        entry = entry || strcmp(name, solution->entry) == 0;
    }
    return entry ? QP_OK
                 : error_set(error, QP_FORMAT,
                             "%s: the entry point's file %s is not among the "
                             "sources",
                             path, solution->entry);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

/* --- traces ---------------------------------------------------------------------------------- */

static cJSON *environment_json(void)
{
    cpu_description cpu;
    cpu_describe(&cpu);
    cJSON *environment = cJSON_CreateObject(), *libs = cJSON_AddObjectToObject(environment, "libs");
    cJSON_AddStringToObject(environment, "hardware", cpu.model[0] ? cpu.model : "CPU");
    cJSON_AddStringToObject(libs, "quipu", QP_VERSION);
    return environment;
}

static cJSON *evaluation_json(const check_verdict *verdict, const timing_report *times)
{
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "status", check_status_name(verdict->status));
    cJSON_AddItemToObject(tree, "environment", environment_json());
    cJSON_AddStringToObject(tree, "timestamp", when);
    cJSON_AddStringToObject(tree, "log", verdict->detail);
    if (verdict->status == CHECK_PASSED || verdict->status == CHECK_INCORRECT_NUMERICAL) {
        cJSON *correctness = cJSON_AddObjectToObject(tree, "correctness");
        cJSON_AddNumberToObject(correctness, "max_relative_error", verdict->relative_error);
        cJSON_AddNumberToObject(correctness, "max_absolute_error", verdict->absolute_error);
    }
    if (verdict->status != CHECK_PASSED) return tree;
    double time_of = times->entries[times->n - 1].result.seconds.median;
    double reference = times->entries[0].result.seconds.median;
    cJSON *performance = cJSON_AddObjectToObject(tree, "performance");
    cJSON_AddNumberToObject(performance, "latency_ms", time_of * 1e3);
    cJSON_AddNumberToObject(performance, "reference_latency_ms", reference * 1e3);
    cJSON_AddNumberToObject(performance, "speedup_factor", time_of > 0 ? reference / time_of : 0);
    return tree;
}

/* Times a workload that passed its check; the results of the timed calls are verified too. */
static void time_workload(const workbench_bench_options *options, const solution *solution,
                          const candidate *candidate, const char *workload, check_verdict *verdict,
                          timing_report *times)
{
    timing_request request = {.op = solution->op,
                              .workload = workload,
                              .candidate = candidate,
                              .features = 0,
                              .threads = options->threads,
                              .timeout_ms = options->timeout_ms,
                              .rounds = options->rounds,
                              .seed = options->seed,
                              .with_reference = true};
    timing_run(&request, times);
    if (times->status != CHECK_PASSED) {
        verdict->status = times->status;
        snprintf(verdict->detail, sizeof verdict->detail, "%s", times->detail);
    } else if (times->declined) {
        verdict->status = CHECK_INCORRECT_SHAPE;
        snprintf(verdict->detail, sizeof verdict->detail, "declined by %s_accepts()",
                 solution->op->name);
    } else if (times->entries[times->n - 1].status != CHECK_PASSED) {
        verdict->status = times->entries[times->n - 1].status;
        snprintf(verdict->detail, sizeof verdict->detail, "wrong after the timing; %.400s",
                 times->detail);
    }
}

/* Checks the solution on workload n of its definition, and times it if it passes. */
static cJSON *judge_workload(const workbench_bench_options *options, const solution *solution,
                             const candidate *candidate, int n, bool *passed)
{
    char workload[1024];
    check_verdict verdict = candidate->verdict; /* of compiling and loading it */
    timing_report times = {0};
    bool declined = false;
    definition_case(solution->definition, solution->definition->workloads[n], workload,
                    sizeof workload);
    if (verdict.status == CHECK_PASSED)
        candidate_check(candidate, workload, options->seed, options->timeout_ms, &verdict,
                        &declined);
    if (verdict.status == CHECK_PASSED)
        time_workload(options, solution, candidate, workload, &verdict, &times);
    if (verdict.status == CHECK_PASSED && candidate->cuda)
        snprintf(verdict.detail, sizeof verdict.detail,
                 "latency includes carrying the tensors to the device and back");
    *passed = verdict.status == CHECK_PASSED;
    cJSON *trace = cJSON_CreateObject();
    cJSON_AddStringToObject(trace, "definition", solution->definition->name);
    cJSON_AddItemToObject(trace, "workload", workload_json(solution->definition, n));
    cJSON_AddStringToObject(trace, "solution", solution->name);
    cJSON_AddItemToObject(trace, "evaluation", evaluation_json(&verdict, &times));
    return trace;
}

static qp_status judge(const workbench_bench_options *options, const solution *solution,
                       const candidate *candidate, strbuf *out, int *n_failed, qp_error *error)
{
    for (int n = 0; solution->definition->workloads[n]; n++) {
        bool passed;
        cJSON *trace = judge_workload(options, solution, candidate, n, &passed);
        *n_failed += !passed;
        TRY(output_json_line(trace, out, error));
    }
    return QP_OK;
}

static qp_status import_tree(const char *path, const cJSON *tree,
                             const workbench_bench_options *options, strbuf *out, int *n_failed,
                             qp_error *error)
{
    solution solution = {0};
    candidate candidate;
    char entry[512];
    TRY(read_solution(path, tree, &solution, error));
    qp_status status = write_sources(path, &solution, error);
    snprintf(entry, sizeof entry, "%s/%s", solution.folder, solution.entry);
    if (status == QP_OK)
        status = candidate_open(solution.op, entry, options->cancel, &candidate, error);
    if (status == QP_OK) {
        status = judge(options, &solution, &candidate, out, n_failed, error);
        candidate_close(&candidate);
    }
    if (solution.folder[0]) nftw(solution.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return status;
}

qp_status workbench_import(const char *path, const workbench_bench_options *options, strbuf *out,
                           int *n_failed, qp_error *error)
{
    strbuf text = {0};
    cJSON *tree = NULL;
    *n_failed = 0;
    qp_status status = files_read(path, SOLUTION_MAX_BYTES, &text, error);
    if (status == QP_OK) status = json_parse(strbuf_text(&text), text.length, path, &tree, error);
    if (status == QP_OK) status = import_tree(path, tree, options, out, n_failed, error);
    cJSON_Delete(tree);
    strbuf_free(&text);
    return status;
}
