/* Measures operators on the workloads of real models; prints a table or JSON. */
#include "workbench/describe.h"
#include "workbench/device.h"
#include "workbench/device_bench.h"
#include "base/output.h"
#include "op/harness/case.h"
#include "workbench/timing.h"
#include "workbench/workbench.h"

#include <stdio.h>
#include <string.h>

typedef struct bench_page {
    const workbench_bench_options *options;
    cJSON *results; /* with --json */
    page table;     /* without --json */
    strbuf notes;
    int n_rows, n_wrong, n_wanted;
    bench_figure limits[HARDWARE_LIMITS]; /* title of the last workload */
} bench_page;

/* The share of the limit that binds a kernel: of the read rate, or of the float32 rate, which
 * kernels that compute in bytes or in tiles may exceed. */
static double share_of_limit(const bench_result *result)
{
    return result->of_read > result->of_float ? result->of_read : result->of_float;
}

static void workload_name(const char *text, char *name, size_t size)
{
    const char *colon = strstr(text, ": ");
    snprintf(name, size, "%.*s", colon ? (int)(colon - text) : (int)strlen(text), text);
}

static void add_json(bench_page *page, const op_info *op, const char *text,
                     const timing_report *report, const timing *entry)
{
    static const char *const limits[HARDWARE_LIMITS] = {
        [HARDWARE_READ] = "read_bytes_per_second",
        [HARDWARE_FLOAT] = "float_flops_per_second",
        [HARDWARE_INTEGER] = "integer_operations_per_second",
        [HARDWARE_MATRIX] = "matrix_flops_per_second"};
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "operator", op->name);
    cJSON_AddStringToObject(item, "workload", text);
    cJSON_AddStringToObject(item, "kernel", entry->name);
    cJSON_AddStringToObject(item, "status", check_status_name(entry->status));
    cJSON_AddNumberToObject(item, "threads", page->options->threads);
    cJSON_AddNumberToObject(item, "seconds", entry->result.seconds.median);
    cJSON_AddNumberToObject(item, "seconds_low", entry->result.seconds.low);
    cJSON_AddNumberToObject(item, "seconds_high", entry->result.seconds.high);
    cJSON_AddNumberToObject(item, "bytes_per_second", entry->result.bytes);
    cJSON_AddNumberToObject(item, "flops_per_second", entry->result.flops);
    cJSON_AddNumberToObject(item, "of_read", entry->result.of_read);
    cJSON_AddNumberToObject(item, "of_float", entry->result.of_float);
    cJSON_AddNumberToObject(item, "of_integer", entry->result.of_integer);
    cJSON_AddNumberToObject(item, "relative_error", entry->result.error);
    cJSON *machine = cJSON_AddObjectToObject(item, "limits");
    for (int limit = 0; limit < HARDWARE_LIMITS; limit++)
        cJSON_AddNumberToObject(machine, limits[limit], report->limits.limits[limit].median);
    cJSON_AddItemToArray(page->results, item);
}

static void add_row(bench_page *page, const op_info *op, const char *text, const timing *entry)
{
    char name[64], time[32], spread[48], bytes[32], flops[32], read[32], share[32];
    const bench_result *r = &entry->result;
    workload_name(text, name, sizeof name);
    snprintf(time, sizeof time, "%.1f", r->seconds.median * 1e6);
    snprintf(spread, sizeof spread, "%.1f-%.1f", r->seconds.low * 1e6, r->seconds.high * 1e6);
    snprintf(bytes, sizeof bytes, "%.1f", r->bytes * 1e-9);
    snprintf(read, sizeof read, "%.0f%%", r->of_read * 100);
    snprintf(flops, sizeof flops, "%.1f", r->flops * 1e-9);
    snprintf(share, sizeof share, "%.0f%%", share_of_limit(r) * 100);
    page_row(&page->table,
             (const char *const[]){op->name, name, entry->name, check_status_name(entry->status),
                                   time, spread, bytes, read, flops, share});
}

/* Prints the rows so far. */
static qp_status hand_rows(bench_page *page, qp_error *error)
{
    const workbench_bench_options *options = page->options;
    if (!options->rows || page->results || page->n_rows == 0) return QP_OK;
    page_table_rows(&page->table);
    return options->rows(options->context, page->table.out, error);
}

static void bench_workload(bench_page *page, timing_request *request)
{
    const workbench_bench_options *options = page->options;
    char what[160], name[64];
    workload_name(request->workload, name, sizeof name);
    snprintf(what, sizeof what, "%s %s", request->op->name, name);
    if (options->progress) options->progress(options->context, what);
    timing_report report;
    timing_run(request, &report);
    if (report.declined) {
        strbuf_printf(&page->notes, "%s: declined by the kernel\n", what);
        return;
    }
    if (report.status != CHECK_PASSED) {
        page->n_wrong++;
        strbuf_printf(&page->notes, "%s: %s: %s\n", what, check_status_name(report.status),
                      report.detail);
        return;
    }
    memcpy(page->limits, report.limits.limits, sizeof page->limits);
    for (int i = 0; i < report.n; i++) {
        const timing *entry = &report.entries[i];
        page->n_wrong += entry->status != CHECK_PASSED;
        page->n_rows++;
        if (page->results)
            add_json(page, request->op, request->workload, &report, entry);
        else
            add_row(page, request->op, request->workload, entry);
    }
    if (report.detail[0]) strbuf_printf(&page->notes, "%s: %s\n", what, report.detail);
}

static void add_device_json(bench_page *page, const op_info *op, const char *text,
                            const char *kernel, const device_timing *entry)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "operator", op->name);
    cJSON_AddStringToObject(item, "workload", text);
    cJSON_AddStringToObject(item, "kernel", kernel);
    cJSON_AddStringToObject(item, "status", check_status_name(entry->status));
    cJSON_AddNumberToObject(item, "seconds", entry->seconds.median);
    cJSON_AddNumberToObject(item, "seconds_low", entry->seconds.low);
    cJSON_AddNumberToObject(item, "seconds_high", entry->seconds.high);
    cJSON_AddNumberToObject(item, "bytes_per_second", entry->bytes);
    cJSON_AddNumberToObject(item, "flops_per_second", entry->flops);
    cJSON_AddNumberToObject(item, "copying_bytes_per_second", entry->copying);
    cJSON_AddNumberToObject(item, "relative_error", entry->error);
    cJSON_AddItemToArray(page->results, item);
}

/* A row of a GPU's table: the limit is the rate of a copy inside its memory instead of the read
 * rate. */
static void add_device_row(bench_page *page, const op_info *op, const char *text,
                           const char *kernel, const device_timing *entry)
{
    char name[64], time[32], spread[48], bytes[32], flops[32], share[32];
    workload_name(text, name, sizeof name);
    snprintf(time, sizeof time, "%.2f", entry->seconds.median * 1e6);
    snprintf(spread, sizeof spread, "%.2f-%.2f", entry->seconds.low * 1e6,
             entry->seconds.high * 1e6);
    snprintf(bytes, sizeof bytes, "%.1f", entry->bytes * 1e-9);
    snprintf(flops, sizeof flops, "%.1f", entry->flops * 1e-9);
    snprintf(share, sizeof share, "%.0f%%", entry->bytes / entry->copying * 100);
    page_row(&page->table,
             (const char *const[]){op->name, name, kernel, check_status_name(entry->status), time,
                                   spread, bytes, share, flops, ""});
}

static const char *kernel_name(const op_info *op, int kernel)
{
    for (int i = 0; op->cuda && op->cuda[i].name; i++)
        if (i == kernel) return op->cuda[i].name;
    return "candidate";
}

static void bench_on_device(bench_page *page, const device_timing_request *request)
{
    char name[64];
    device_timing entry;
    workload_name(request->workload, name, sizeof name);
    device_timing_run(request, &entry);
    if (entry.declined) return;
    const char *kernel = kernel_name(request->op, entry.kernel);
    page->n_wrong += entry.status != CHECK_PASSED;
    if (entry.detail[0])
        strbuf_printf(&page->notes, "%s %s %s: %s: %s\n", request->op->name, name, kernel,
                      check_status_name(entry.status), entry.detail);
    if (entry.seconds.median == 0) return;
    page->n_rows++;
    if (page->results)
        add_device_json(page, request->op, request->workload, kernel, &entry);
    else
        add_device_row(page, request->op, request->workload, kernel, &entry);
}

/* Whether the caller describes a workload; no name contains "=". */
static bool is_described(const workbench_bench_options *options)
{
    return options->workload && strchr(options->workload, '=');
}

/* The operator's workloads, or the one that the caller describes; `own` holds that list. */
static const char *const *workloads_of(const bench_page *page, const op_info *op,
                                       const char *own[static 2])
{
    if (!is_described(page->options)) return op->workloads;
    own[0] = page->options->workload, own[1] = NULL;
    return own;
}

static bool wants_workload(bench_page *page, const char *text)
{
    char name[64];
    const char *part = page->options->workload;
    workload_name(text, name, sizeof name);
    if (part && part != text && !strstr(name, part)) return false;
    page->n_wanted++;
    return true;
}

/* A described workload fits one operator, and its text must be right. */
static qp_status check_described(const workbench_bench_options *options, qp_error *error)
{
    const op_info *op;
    op_case unused;
    if (!is_described(options)) return QP_OK;
    if (options->n_ops != 1)
        return error_set(error, QP_INVALID,
                         "--workload '%.60s' describes a workload: name the one operator that it "
                         "is for",
                         options->workload);
    TRY(describe_find(options->ops[0], &op, error));
    return op_case_parse(op, options->workload, &unused, error);
}

/* It is an error if a requested workload does not exist. */
static qp_status no_workload(const workbench_bench_options *options, const op_info *op,
                             qp_error *error)
{
    strbuf names = {0};
    for (const char *const *text = op->workloads; options->n_ops == 1 && text && *text; text++) {
        char name[64];
        workload_name(*text, name, sizeof name);
        strbuf_printf(&names, "%s%s", names.length ? ", " : "; it has ", name);
    }
    error_set(error, QP_INVALID, "no workload of %s has '%.60s' in its name%s",
              options->n_ops == 1 ? op->name : "these operators", options->workload,
              strbuf_text(&names));
    strbuf_free(&names);
    return QP_INVALID;
}

static bool wants_best(const workbench_bench_options *options)
{
    return options->variant && strcmp(options->variant, "best") == 0;
}

static bool wants_kernel(const workbench_bench_options *options, const cuda_kernel *kernel)
{
    return !options->variant || strcmp(options->variant, kernel->name) == 0;
}

/* If one operator was requested, it is an error if it does not have the requested variant. */
static qp_status no_variant(const workbench_bench_options *options, const op_info *op,
                            qp_error *error)
{
    if (options->n_ops == 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%s has no variant '%.60s' that can run here; `quipu ops describe %s` shows "
                     "those that it has",
                     op->name, options->variant, op->name);
}

/* The GPU kernels to measure: all that accept the workload, or only the one that quipu would
 * choose, or a .cu file's launcher. */
static qp_status bench_op_on_device(bench_page *page, const op_info *op, const candidate *candidate,
                                    qp_error *error)
{
    const workbench_bench_options *options = page->options;
    const char *own[2];
    const cuda_kernel *wanted = op->cuda;
    while (wanted && wanted->name && !wants_kernel(options, wanted))
        wanted++;
    if (options->variant && !wants_best(options) && (!wanted || !wanted->name))
        return no_variant(options, op, error);
    for (const char *const *text = workloads_of(page, op, own); text && *text; text++) {
        if (!wants_workload(page, *text)) continue;
        device_timing_request request = {.op = op,
                                         .workload = *text,
                                         .candidate = candidate,
                                         .rounds = options->rounds,
                                         .timeout_ms = options->timeout_ms,
                                         .seed = options->seed};
        if (candidate || wants_best(options)) bench_on_device(page, &request);
        TRY(hand_rows(page, error));
        if (wants_best(options)) continue;
        for (const cuda_kernel *k = op->cuda; k && k->name; k++) {
            if (!k->launch || k->needs_ranks || !wants_kernel(options, k)) continue;
            request.kernel = k;
            request.candidate = NULL;
            bench_on_device(page, &request);
            TRY(hand_rows(page, error));
        }
    }
    return QP_OK;
}

static qp_status bench_op(bench_page *page, const op_info *op, const candidate *candidate,
                          qp_error *error)
{
    if (page->options->device || (candidate && candidate->cuda))
        return bench_op_on_device(page, op, candidate, error);
    const workbench_bench_options *options = page->options;
    const op_variant *variant = NULL;
    const char *own[2];
    for (const op_variant *v = op->variants; options->variant && v && v->name; v++) {
        if (strcmp(v->name, options->variant) == 0 && (v->needs & ~options->features) == 0)
            variant = v;
    }
    if (options->variant && !variant && !wants_best(options))
        return no_variant(options, op, error); /* the best is measured anyway */
    for (const char *const *text = workloads_of(page, op, own); text && *text; text++) {
        if (!wants_workload(page, *text)) continue;
        timing_request request = {.op = op,
                                  .workload = *text,
                                  .variant = variant,
                                  .candidate = candidate,
                                  .features = options->features,
                                  .threads = options->threads,
                                  .timeout_ms = options->timeout_ms,
                                  .rounds = options->rounds,
                                  .seed = options->seed};
        bench_workload(page, &request);
        TRY(hand_rows(page, error));
    }
    return QP_OK;
}

static qp_status bench_file(bench_page *page, const op_info *op, strbuf *out, qp_error *error)
{
    candidate candidate;
    TRY(candidate_open(op, page->options->kernel, page->options->unconfined, page->options->cancel,
                       &candidate, error));
    qp_status status = QP_OK;
    if (candidate.verdict.status != CHECK_PASSED)
        status = error_set(error, QP_FORMAT, "%s: %s", check_status_name(candidate.verdict.status),
                           candidate.verdict.detail);
    if (status == QP_OK && page->options->format != WORKBENCH_JSON)
        strbuf_printf(out, "%s\n", candidate.command);
    if (status == QP_OK) status = bench_op(page, op, &candidate, error);
    candidate_close(&candidate);
    return status;
}

/* Columns for what may come: names, and numbers of some width. */
static void reserve_columns(bench_page *page, const op_info *op)
{
    const workbench_bench_options *options = page->options;
    const char *own[2], *cells[] = {op->name,          "",       "reference", "PASSED",  "10000.0",
                                    "10000.0-10000.0", "1000.0", "100%",      "10000.0", "100%"};
    char name[64];
    for (const char *const *text = workloads_of(page, op, own); text && *text; text++) {
        workload_name(*text, name, sizeof name);
        if (options->workload && !is_described(options) && !strstr(name, options->workload))
            continue;
        cells[1] = name;
        page_reserve(&page->table, cells);
    }
    describe_reserve(op, options->device, cells, 2, &page->table);
}

static qp_status bench_ops(bench_page *page, strbuf *out, qp_error *error)
{
    const workbench_bench_options *options = page->options;
    if (options->kernel && (options->n_ops != 1 || options->variant))
        return error_set(error, QP_INVALID,
                         "--kernel goes with the name of one operator and without --variant");
    TRY(check_described(options, error));
    if (options->device) TRY(device_is_here("--device cuda", error));
    int n = options->n_ops ? options->n_ops : OP_COUNT;
    for (int i = 0; i < n && options->rows; i++) {
        const op_info *op;
        TRY(describe_nth(options->ops, options->n_ops, i, &op, error));
        reserve_columns(page, op);
    }
    for (int i = 0; i < n; i++) {
        const op_info *op;
        TRY(describe_nth(options->ops, options->n_ops, i, &op, error));
        TRY(options->kernel ? bench_file(page, op, out, error) : bench_op(page, op, NULL, error));
        if (i == n - 1 && options->workload && page->n_wanted == 0)
            return no_workload(options, op, error);
    }
    return QP_OK;
}

static void print_limits(const bench_page *page, strbuf *out)
{
    strbuf_printf(out,
                  "\n%d thread%s; this machine, measured in turn with the kernels: reading %.1f "
                  "GB/s, float32 FMA %.0f GFLOP/s, byte dot products %.0f GOP/s",
                  page->options->threads, page->options->threads == 1 ? "" : "s",
                  page->limits[HARDWARE_READ].median * 1e-9,
                  page->limits[HARDWARE_FLOAT].median * 1e-9,
                  page->limits[HARDWARE_INTEGER].median * 1e-9);
    const double tiles = page->limits[HARDWARE_MATRIX].median; /* 0: no AMX */
    if (tiles > 0) strbuf_printf(out, ", BF16 tiles %.0f GFLOP/s", tiles * 1e-9);
    strbuf_printf(out, "\n");
}

static qp_status finish_json(bench_page *page, strbuf *out, qp_error *error)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddItemToObject(tree, "results", page->results);
    page->results = NULL;
    cJSON_AddNumberToObject(tree, "wrong", page->n_wrong);
    cJSON_AddStringToObject(tree, "notes", strbuf_text(&page->notes));
    return output_json(tree, out, error);
}

qp_status workbench_bench(const workbench_bench_options *options, strbuf *out, int *n_wrong,
                          qp_error *error)
{
    bench_page page = {
        .options = options,
        .table = {.out = out, .level = 1, .markdown = options->format == WORKBENCH_MARKDOWN}};
    if (options->format == WORKBENCH_JSON)
        page.results = cJSON_CreateArray();
    else
        page_table(&page.table, 10,
                   (const char *const[]){"operator", "workload", "kernel", "verdict", ">us",
                                         ">quartiles", ">GB/s", ">of reading", ">GFLOP/s",
                                         ">of the limit"});
    qp_status status = bench_ops(&page, out, error);
    if (status == QP_OK && options->format == WORKBENCH_JSON) {
        status = finish_json(&page, out, error);
    } else if (status == QP_OK) {
        if (page.n_rows > 0) {
            page_table_end(&page.table);
            if (page.limits[HARDWARE_READ].median > 0) print_limits(&page, out);
        }
        if (page.notes.length) strbuf_printf(out, "\n%s", strbuf_text(&page.notes));
        status = output_done(out, error);
    }
    *n_wrong = page.n_wrong;
    cJSON_Delete(page.results);
    strbuf_free(&page.table.cells);
    strbuf_free(&page.notes);
    return status;
}
