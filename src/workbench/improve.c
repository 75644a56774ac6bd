/* Rounds of a program that writes kernels: see workbench_improve() in workbench.h.
 *
 * A round gives the program the operator's page, with what came of its last answer, and takes a
 * kernel from its answer. The kernel is checked, then timed on the operator's workloads beside
 * quipu's best one. All of it stays in a folder: the answers, the best of them, and a history.
 */
#include "base/clock.h"
#include "base/files.h"
#include "base/output.h"
#include "workbench/candidate.h"
#include "workbench/describe.h"
#include "workbench/shell.h"
#include "workbench/timing.h"
#include "workbench/workbench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct attempt {
    check_verdict verdict;
    int n_passed;   /* cases */
    int n_timed;    /* workloads */
    double speedup; /* geometric mean over them: time of quipu's best kernel / of this one */
    strbuf source, text;
    cJSON *workloads;
} attempt;

typedef struct improvement {
    const workbench_improve_options *options;
    const op_info *op;
    uint64_t deadline; /* of clock_ns() */
    strbuf history;    /* JSON lines */
    int round, best;   /* best: its round; 0: none */
    double best_speedup;
} improvement;

static void path_of(const improvement *m, const char *name, char path[4200])
{
    snprintf(path, 4200, "%.4000s/%s", m->options->folder, name);
}

static qp_status write_file(const improvement *m, const char *name, const strbuf *text,
                            qp_error *error)
{
    char path[4200];
    path_of(m, name, path);
    return files_write(path, text->data, text->length, error);
}

static bool is_over(const improvement *m)
{
    const workbench_improve_options *o = m->options;
    return m->round >= o->rounds || clock_ns() >= m->deadline || (o->cancel && *o->cancel);
}

/* What is left of the time, and at most `most`. */
static int milliseconds_left(const improvement *m, int most)
{
    const uint64_t now = clock_ns();
    const uint64_t left = now < m->deadline ? (m->deadline - now) / 1000000u + 1 : 1;
    return left < (uint64_t)most ? (int)left : most;
}

static void show(const improvement *m, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "round %d of %d: %.100s", m->round, m->options->rounds, what);
    if (m->options->progress) m->options->progress(m->options->context, text);
}

/* --- one round ------------------------------------------------------------------------------- */

/* A program may answer in Markdown: then the kernel is the longest block of code. */
static void take_source(const strbuf *answer, strbuf *source)
{
    const char *text = strbuf_text(answer), *best = text;
    size_t length = answer->length;
    bool fenced = false;
    for (const char *at = strstr(text, "```"); at;) {
        const char *begin = strchr(at, '\n'), *end = begin ? strstr(begin, "\n```") : NULL;
        if (!end) break;
        if (!fenced || (size_t)(end - begin) > length) {
            best = begin + 1;
            length = (size_t)(end - begin);
        }
        fenced = true;
        at = strstr(end + 4, "```");
    }
    strbuf_append(source, best, length);
}

static qp_status ask(const improvement *m, attempt *a, qp_error *error)
{
    char path[4200];
    strbuf page = {0}, answer = {0};
    qp_error why = {0};
    path_of(m, "verdict.txt", path);
    show(m, "the command writes");
    qp_status status = workbench_prompt(m->op->name, m->round > 1 ? path : NULL, &page, error);
    if (status == QP_OK) {
        status = shell_run(m->options->command, page.data, page.length,
                           milliseconds_left(m, m->options->command_timeout_ms), m->options->cancel,
                           &answer, &why);
        if (status != QP_OK)
            status = error_set(error, why.status, "round %d: the command failed: %s", m->round,
                               why.message);
    }
    if (status == QP_OK) take_source(&answer, &a->source);
    strbuf_free(&page);
    strbuf_free(&answer);
    return status;
}

static void time_one(const improvement *m, const candidate *candidate, const char *workload,
                     attempt *a, double *logarithms)
{
    timing_report report;
    const timing_request request = {.op = m->op,
                                    .workload = workload,
                                    .candidate = candidate,
                                    .features = m->options->features,
                                    .threads = m->options->threads,
                                    .timeout_ms = m->options->timeout_ms,
                                    .rounds = m->options->repetitions,
                                    .seed = m->options->seed};
    const int length = (int)strcspn(workload, ":");
    timing_run(&request, &report);
    if (report.declined) {
        strbuf_printf(&a->text, "%.*s: declined\n", length, workload);
        return;
    }
    const timing *own = &report.entries[report.n - 1];
    if (report.status != CHECK_PASSED || own->status != CHECK_PASSED) {
        a->verdict.status = report.status != CHECK_PASSED ? report.status : own->status;
        snprintf(a->verdict.detail, sizeof a->verdict.detail, "workload %.*s: %.400s", length,
                 workload, report.detail);
        return;
    }
    const timing *best = &report.entries[report.n > 1 ? report.n - 2 : 0];
    const double seconds = own->result.seconds.median, others = best->result.seconds.median;
    strbuf_printf(&a->text, "%.*s: %.3g us, quipu's %s %.3g us: %.2f times as fast\n", length,
                  workload, seconds * 1e6, best->name, others * 1e6, others / seconds);
    cJSON *item = cJSON_CreateObject();
    char name[160];
    snprintf(name, sizeof name, "%.*s", length, workload);
    cJSON_AddStringToObject(item, "workload", name);
    cJSON_AddNumberToObject(item, "seconds", seconds);
    cJSON_AddStringToObject(item, "compared_with", best->name);
    cJSON_AddNumberToObject(item, "compared_seconds", others);
    cJSON_AddItemToArray(a->workloads, item);
    *logarithms += log(others / seconds);
    a->n_timed++;
}

/* Whether the name of a workload, which stands before its colon, contains `wanted`; NULL: any. */
static bool is_named(const char *workload, const char *wanted)
{
    const char *found = wanted ? strstr(workload, wanted) : workload;
    return found && found < workload + strcspn(workload, ":") + 1;
}

static void time_all(const improvement *m, const candidate *candidate, attempt *a)
{
    double logarithms = 0;
    const char *wanted = m->options->workload;
    show(m, "timing");
    for (const char *const *text = m->op->workloads; text && *text; text++) {
        if (a->verdict.status != CHECK_PASSED || (m->options->cancel && *m->options->cancel))
            return;
        if (is_named(*text, wanted)) time_one(m, candidate, *text, a, &logarithms);
    }
    if (a->n_timed > 0) a->speedup = exp(logarithms / a->n_timed);
}

static qp_status judge(const improvement *m, const char *name, attempt *a, qp_error *error)
{
    char path[4200];
    candidate candidate;
    path_of(m, name, path);
    show(m, "checking");
    TRY(candidate_open(m->op, path, m->options->unconfined, m->options->cancel, &candidate, error));
    a->verdict = candidate.verdict;
    if (a->verdict.status == CHECK_PASSED)
        candidate_check_all(&candidate, m->options->seed, m->options->timeout_ms, &a->verdict,
                            &a->n_passed);
    if (a->verdict.status == CHECK_PASSED) time_all(m, &candidate, a);
    candidate_close(&candidate);
    if (m->options->cancel && *m->options->cancel)
        return error_set(error, QP_CANCELLED, "interrupted");
    return QP_OK;
}

/* --- what is kept ---------------------------------------------------------------------------- */

static qp_status add_history(improvement *m, const char *name, const attempt *a, bool best,
                             qp_error *error)
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddNumberToObject(line, "round", m->round);
    cJSON_AddStringToObject(line, "operator", m->op->name);
    cJSON_AddStringToObject(line, "file", name);
    cJSON_AddStringToObject(line, "status", check_status_name(a->verdict.status));
    cJSON_AddStringToObject(line, "detail", a->verdict.detail);
    cJSON_AddNumberToObject(line, "cases_passed", a->n_passed);
    if (a->n_timed > 0)
        cJSON_AddNumberToObject(line, "speedup", a->speedup);
    else
        cJSON_AddNullToObject(line, "speedup");
    cJSON_AddItemToObject(line, "workloads", cJSON_Duplicate(a->workloads, true));
    cJSON_AddBoolToObject(line, "best", best);
    TRY(output_json_line(line, &m->history, error));
    return write_file(m, "history.jsonl", &m->history, error);
}

/* What the program is told of its last answer. */
static qp_status write_verdict(const improvement *m, const attempt *a, qp_error *error)
{
    strbuf text = {0};
    strbuf_append(&text, a->source.data, a->source.length);
    strbuf_printf(&text, "\n---- verdict: %s %s\n%s", check_status_name(a->verdict.status),
                  a->verdict.detail, strbuf_text(&a->text));
    if (a->n_timed > 0)
        strbuf_printf(&text, "in the mean %.3f times as fast as quipu's best kernels\n",
                      a->speedup);
    if (m->best)
        strbuf_printf(&text, "the best so far is that of round %d, %.3f times as fast\n", m->best,
                      m->best_speedup);
    qp_status status = write_file(m, "verdict.txt", &text, error);
    strbuf_free(&text);
    return status;
}

static qp_status run_round(improvement *m, attempt *a, strbuf *out, qp_error *error)
{
    char name[32];
    snprintf(name, sizeof name, "%03d.c", m->round);
    TRY(ask(m, a, error));
    TRY(write_file(m, name, &a->source, error));
    TRY(judge(m, name, a, error));
    const bool passed = a->verdict.status == CHECK_PASSED;
    const bool best = passed && (!m->best || a->speedup > m->best_speedup);
    if (best) {
        m->best = m->round;
        m->best_speedup = a->speedup;
        TRY(write_file(m, "best.c", &a->source, error));
    }
    TRY(add_history(m, name, a, best, error));
    TRY(write_verdict(m, a, error));
    strbuf_printf(out, "%5d  %-6s  %-20s  ", m->round, name, check_status_name(a->verdict.status));
    if (a->n_timed > 0)
        strbuf_printf(out, "%8.3f  %s\n", a->speedup, best ? "best" : "");
    else
        strbuf_printf(out, "%8s  %.*s\n", "-", (int)strcspn(a->verdict.detail, "\n"),
                      a->verdict.detail);
    return QP_OK;
}

/* Without a workload no kernel would be timed, and none the best. */
static qp_status check_workload(const op_info *op, const char *wanted, qp_error *error)
{
    for (const char *const *text = op->workloads; text && *text; text++)
        if (is_named(*text, wanted)) return QP_OK;
    if (!wanted)
        return error_set(error, QP_INVALID, "%s has no workloads to time kernels on", op->name);
    return error_set(
        error, QP_INVALID,
        "no workload of %s has '%.60s' in its name; `quipu ops describe %s` lists them", op->name,
        wanted, op->name);
}

static qp_status begin(improvement *m, qp_error *error)
{
    char path[4200];
    const workbench_improve_options *o = m->options;
    TRY(describe_find(o->op, &m->op, error));
    TRY(check_workload(m->op, o->workload, error));
    path_of(m, "history.jsonl", path);
    if (access(path, F_OK) == 0)
        return error_set(error, QP_INVALID,
                         "%s exists: name another folder with --out, or remove that one", path);
    m->deadline = clock_ns() + (uint64_t)o->seconds * 1000000000u;
    return QP_OK;
}

qp_status workbench_improve(const workbench_improve_options *options, strbuf *out, qp_error *error)
{
    improvement m = {.options = options};
    qp_status status = begin(&m, error);
    if (status == QP_OK)
        strbuf_printf(out, "%5s  %-6s  %-20s  %8s\n", "round", "file", "verdict", "speedup");
    while (status == QP_OK && !is_over(&m)) {
        attempt a = {.workloads = cJSON_CreateArray()};
        m.round++;
        status = run_round(&m, &a, out, error);
        strbuf_free(&a.source);
        strbuf_free(&a.text);
        cJSON_Delete(a.workloads);
    }
    strbuf_free(&m.history);
    if (status != QP_OK) return status;
    if (!m.best)
        return error_set(error, QP_FORMAT,
                         "no kernel passed in %d rounds; %s/history.jsonl says why", m.round,
                         options->folder);
    strbuf_printf(out,
                  "\nbest: round %d, %.3f times as fast as quipu's best kernels in the mean: "
                  "%s/best.c\n",
                  m.best, m.best_speedup, options->folder);
    return output_done(out, error);
}
