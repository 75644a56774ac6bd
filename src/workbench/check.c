/* Checks operators x variants x cases, or a candidate, each case in a process of its own. */
#include "op/harness/check.h"

#include "op/harness/case.h"
#include "workbench/candidate.h"
#include "workbench/describe.h"
#include "workbench/device.h"
#include "base/files.h"
#include "base/output.h"
#include "workbench/workbench.h"

#include <stdio.h>
#include <string.h>

/* The result of a case, which a child process returns. */
typedef struct outcome {
    check_verdict verdict;
    bool declined; /* the kernel does not handle its types or shapes */
} outcome;

/* A kernel being checked, and its results. */
typedef struct check_run {
    const workbench_check_options *options;
    const op_info *op;
    const op_variant *variant;  /* a variant; NULL: the reference */
    const candidate *candidate; /* or a candidate */
    bool
        on_device; /* the variant is a GPU kernel: child processes cannot share the GPU's context */
    const char *name;
    int n_cases, n_declined, n_failed;
    double relative_error, absolute_error;
    check_status status; /* status of the first failure */
} check_run;

/* The output of the command. */
typedef struct report {
    const workbench_check_options *options;
    cJSON *results;           /* with --json */
    page table;               /* without --json */
    strbuf failures, printed; /* printed: by a candidate */
    int n_cases, n_failed;
    bool device_lost;
    qp_status handed; /* of options->rows() */
    qp_error *error;
} report;

/* --- one case -------------------------------------------------------------------------------- */

/* Runs the case in this process, because a GPU's context does not survive a fork. */
static void check_on_device(const check_run *run, const char *text, check_verdict *verdict)
{
    qp_error error;
    check_variant(run->op, run->variant, text, run->options->seed, verdict);
    if (device_failure(&error) == QP_OK) return;
    verdict->status = CHECK_RUNTIME_ERROR;
    snprintf(verdict->detail, sizeof verdict->detail, "%.200s: %.300s", text, error.message);
}

static void run_case(const check_run *run, const char *text, outcome *out)
{
    op_case about;
    qp_error error;
    *out = (outcome){0};
    if (op_case_parse(run->op, text, &about, &error) != QP_OK) {
        out->verdict.status = CHECK_INCORRECT_SHAPE;
        snprintf(out->verdict.detail, sizeof out->verdict.detail, "%.500s", error.message);
        return;
    }
    int timeout = run->options->timeout_ms;
    if (!run->candidate) {
        out->declined = run->variant && !op_case_accepted(run->op, &about, run->variant);
        if (!out->declined && run->on_device)
            check_on_device(run, text, &out->verdict);
        else if (!out->declined)
            check_in_child(run->op, run->variant, text, run->options->seed, timeout, &out->verdict);
        return;
    }
    candidate_check(run->candidate, text, run->options->seed, timeout, &out->verdict,
                    &out->declined);
}

/* --- one kernel ------------------------------------------------------------------------------ */

static void add_json(report *report, const check_run *run, const char *text, const outcome *out)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "operator", run->op->name);
    cJSON_AddStringToObject(item, "variant", run->name);
    cJSON_AddStringToObject(item, "case", text);
    cJSON_AddStringToObject(item, "status", check_status_name(out->verdict.status));
    cJSON_AddNumberToObject(item, "runs", out->verdict.runs);
    cJSON_AddNumberToObject(item, "relative_error", out->verdict.relative_error);
    cJSON_AddNumberToObject(item, "absolute_error", out->verdict.absolute_error);
    cJSON_AddStringToObject(item, "detail", out->verdict.detail);
    cJSON_AddItemToArray(report->results, item);
}

static void add_outcome(report *report, check_run *run, const char *text, const outcome *out)
{
    run->n_cases++;
    if (report->results) add_json(report, run, text, out);
    const check_verdict *verdict = &out->verdict;
    if (verdict->relative_error > run->relative_error)
        run->relative_error = verdict->relative_error;
    if (verdict->absolute_error > run->absolute_error)
        run->absolute_error = verdict->absolute_error;
    if (verdict->status == CHECK_PASSED) return;
    if (run->n_failed++ == 0) run->status = verdict->status;
    strbuf_printf(&report->failures, "%s %s: %s\n    %s\n", run->op->name, run->name,
                  check_status_name(verdict->status), verdict->detail);
}

static void add_row(report *report, const check_run *run)
{
    char cases[64], relative[32], absolute[32];
    if (run->n_failed)
        snprintf(cases, sizeof cases, "%d of %d", run->n_failed, run->n_cases);
    else
        snprintf(cases, sizeof cases, "%d", run->n_cases);
    snprintf(relative, sizeof relative, "%.2g", run->relative_error);
    snprintf(absolute, sizeof absolute, "%.2g", run->absolute_error);
    page_row(&report->table,
             (const char *const[]){run->op->name, run->name, check_status_name(run->status), cases,
                                   relative, absolute});
    const workbench_check_options *options = report->options;
    if (!options->rows || options->kernel || report->handed != QP_OK) return;
    page_table_rows(&report->table);
    report->handed = options->rows(options->context, report->table.out, report->error);
}

static void check_one(report *report, check_run *run)
{
    const workbench_check_options *options = run->options;
    for (const char *const *text = run->op->cases; text && *text; text++) {
        char what[160];
        snprintf(what, sizeof what, "%s %s", run->op->name, run->name);
        if (options->progress) options->progress(options->context, what);
        if (options->cancel && *options->cancel) return;
        outcome out;
        run_case(run, *text, &out);
        if (out.declined)
            run->n_declined++;
        else
            add_outcome(report, run, *text, &out);
        /* A candidate that cannot be loaded fails on every case in the same way, and after a crash
         * no other kernel can run on the GPU. */
        report->device_lost = run->on_device && out.verdict.status == CHECK_RUNTIME_ERROR;
        if (out.verdict.status == CHECK_COMPILE_ERROR || report->device_lost) break;
    }
    if (run->candidate && run->n_cases == 0) {
        outcome none = {.verdict.status = CHECK_RUNTIME_ERROR};
        snprintf(none.verdict.detail, sizeof none.verdict.detail,
                 "%s_accepts() declines every case", run->op->name);
        add_outcome(report, run, "", &none);
    }
    if (run->n_cases > 0 && !report->results) add_row(report, run);
    report->n_cases += run->n_cases;
    report->n_failed += run->n_failed;
}

/* --- which kernels --------------------------------------------------------------------------- */

/* Checks a variant on those cases for which quipu would choose it. */
static void check_chosen(report *report, const op_info *op)
{
    for (int v = -1; v < 0 || (op->variants && op->variants[v].name); v++) {
        check_run run = {.options = report->options,
                         .op = op,
                         .variant = v < 0 ? NULL : &op->variants[v],
                         .name = v < 0 ? "reference" : op->variants[v].name};
        for (const char *const *text = op->cases; text && *text; text++) {
            op_case about;
            outcome out;
            qp_error error;
            const op_variant *chosen = NULL;
            if (op_case_parse(op, *text, &about, &error) == QP_OK) {
                for (const op_variant *w = op->variants; w && w->name; w++) {
                    if ((w->needs & ~report->options->features) == 0 &&
                        op_case_accepted(op, &about, w))
                        chosen = w;
                }
            }
            if (chosen != run.variant) continue;
            run_case(&run, *text, &out);
            add_outcome(report, &run, *text, &out);
        }
        if (run.n_cases > 0 && !report->results) add_row(report, &run);
        report->n_cases += run.n_cases;
        report->n_failed += run.n_failed;
    }
}

static void check_variants(report *report, const op_info *op)
{
    const char *wanted = report->options->variant;
    if (!wanted || strcmp(wanted, "reference") == 0) {
        check_run run = {.options = report->options, .op = op, .name = "reference"};
        check_one(report, &run);
    }
    for (const op_variant *v = op->variants; v && v->name; v++) {
        if (v->needs & ~(report->options->features | OP_X_BITS)) continue;
        if (wanted && strcmp(wanted, v->name) != 0) continue;
        if (report->handed != QP_OK) return;
        check_run run = {.options = report->options, .op = op, .variant = v, .name = v->name};
        check_one(report, &run);
    }
}

static void note_unchecked(report *report, const cuda_kernel *kernel)
{
    const char *missing = cuda_feature_missing(device_gpu()->features, kernel->needs);
    if (missing)
        strbuf_printf(&report->failures, "%s %s: not checked, because the GPU lacks %s\n",
                      op_get(kernel->op)->name, kernel->name, missing);
}

static void check_device(report *report, const op_info *op)
{
    const char *wanted = report->options->variant;
    for (const cuda_kernel *k = op->cuda; k && k->name && !report->device_lost; k++) {
        if (report->handed != QP_OK) return;
        if (!k->launch || (wanted && strcmp(wanted, k->name) != 0)) continue;
        if (!cuda_kernel_runs(device_ops(), k)) {
            note_unchecked(report, k);
            continue;
        }
        op_variant variant = device_variant(k);
        check_run run = {.options = report->options,
                         .op = op,
                         .variant = &variant,
                         .name = k->name,
                         .on_device = true};
        check_one(report, &run);
    }
}

static qp_status check_file(report *report, const op_info *op, strbuf *out, qp_error *error)
{
    candidate candidate;
    TRY(candidate_open(op, report->options->kernel, report->options->unconfined,
                       report->options->cancel, &candidate, error));
    candidate.printed = &report->printed;
    if (candidate.command[0] && !report->results) strbuf_printf(out, "%s\n", candidate.command);
    check_run run = {
        .options = report->options, .op = op, .candidate = &candidate, .name = "candidate"};
    if (candidate.verdict.status == CHECK_PASSED) {
        check_one(report, &run);
    } else {
        outcome refused = {.verdict = candidate.verdict};
        add_outcome(report, &run, "", &refused);
        if (!report->results) add_row(report, &run);
        report->n_failed = report->n_cases = 1;
    }
    if (run.n_declined > 0)
        strbuf_printf(&report->failures, "declined: %d cases\n", run.n_declined);
    candidate_close(&candidate);
    if (report->options->cancel && *report->options->cancel)
        return error_set(error, QP_CANCELLED, "interrupted");
    return QP_OK;
}

/* Columns for the names of all kernels that may be checked. */
static qp_status reserve_names(report *report, qp_error *error)
{
    const workbench_check_options *options = report->options;
    const int n = options->n_ops ? options->n_ops : OP_COUNT;
    for (int i = 0; i < n; i++) {
        const op_info *op;
        TRY(describe_nth(options->ops, options->n_ops, i, &op, error));
        const char *cells[] = {op->name, "reference", "PASSED", "", "", ""};
        page_reserve(&report->table, cells);
        describe_reserve(op, options->device, cells, 1, &report->table);
    }
    return QP_OK;
}

static qp_status check_ops(report *report, strbuf *out, qp_error *error)
{
    const workbench_check_options *options = report->options;
    bool chosen = options->variant && strcmp(options->variant, "best") == 0;
    if (options->device && !options->kernel) TRY(device_open(error));
    if (options->kernel && (options->n_ops != 1 || options->variant))
        return error_set(error, QP_INVALID,
                         "--kernel goes with the name of one operator and without --variant");
    if (options->rows && !report->results) TRY(reserve_names(report, error));
    int n = options->n_ops ? options->n_ops : OP_COUNT;
    for (int i = 0; i < n; i++) {
        const op_info *op;
        TRY(describe_nth(options->ops, options->n_ops, i, &op, error));
        if (options->kernel)
            TRY(check_file(report, op, out, error));
        else if (options->device)
            check_device(report, op);
        else if (chosen)
            check_chosen(report, op);
        else
            check_variants(report, op);
        TRY(report->handed);
    }
    if (report->device_lost)
        strbuf_puts(&report->failures, "the kernels after this one were not checked\n");
    if (report->n_cases > 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "no variant '%.60s' can run here; `quipu ops list` shows those that can",
                     options->variant ? options->variant : "");
}

/* --- the answer ------------------------------------------------------------------------------ */

static qp_status finish_text(report *report, strbuf *out, qp_error *error)
{
    page_table_end(&report->table);
    if (report->failures.length) strbuf_printf(out, "\n%s", strbuf_text(&report->failures));
    if (report->printed.length)
        strbuf_printf(out, "\nprinted:\n%s\n", strbuf_text(&report->printed));
    strbuf_printf(out, "\n%d check%s, %d failed\n", report->n_cases,
                  report->n_cases == 1 ? "" : "s", report->n_failed);
    TRY(output_done(out, error));
    if (report->options->kernel && report->options->verdict_path)
        return files_write(report->options->verdict_path, out->data, out->length, error);
    return QP_OK;
}

static qp_status finish_json(report *report, strbuf *out, qp_error *error)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddBoolToObject(tree, "passed", report->n_failed == 0);
    cJSON_AddNumberToObject(tree, "checks", report->n_cases);
    cJSON_AddNumberToObject(tree, "failed", report->n_failed);
    cJSON_AddItemToObject(tree, "results", report->results);
    report->results = NULL;
    if (report->options->kernel)
        cJSON_AddStringToObject(tree, "printed", strbuf_text(&report->printed));
    return output_json(tree, out, error);
}

qp_status workbench_check(const workbench_check_options *options, strbuf *out, int *n_failed,
                          qp_error *error)
{
    report report = {.options = options, .error = error, .table = {.out = out, .level = 1}};
    if (options->json)
        report.results = cJSON_CreateArray();
    else
        page_table(&report.table, 6,
                   (const char *const[]){"operator", "kernel", "verdict", ">cases",
                                         ">relative error", ">absolute error"});
    qp_status status = check_ops(&report, out, error);
    device_close();
    if (status == QP_OK)
        status =
            options->json ? finish_json(&report, out, error) : finish_text(&report, out, error);
    *n_failed = report.n_failed;
    cJSON_Delete(report.results);
    strbuf_free(&report.table.cells);
    strbuf_free(&report.failures);
    strbuf_free(&report.printed);
    return status;
}
