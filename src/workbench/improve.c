/* Rounds of a program that writes kernels: see workbench_improve() in workbench.h.
 *
 * A round gives the program the operator's page, with what came of one of its answers, and takes a
 * kernel from its answer. The kernel is checked, then timed on the operator's workloads beside
 * quipu's best one. If it may be the best so far it runs in turn with that one, and takes its place
 * only outside of noise. All of it stays in a folder: the answers, what came of each, the best of
 * them, and a history, with which a later call goes on.
 */
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/paired.h"
#include "workbench/candidate.h"
#include "workbench/describe.h"
#include "workbench/device.h"
#include "workbench/improve_times.h"
#include "workbench/shell.h"
#include "workbench/workbench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BEAM_MOST = 16, DUEL_PAIRS = 12, DUEL_LOST = 2 };

typedef struct attempt {
    bool answered;
    check_verdict verdict;
    int n_passed;      /* cases */
    int n_timed;       /* workloads */
    double speedup;    /* geometric mean over them: time of quipu's best kernel / of this one */
    paired_ratio duel; /* its times over those of the best so far */
    strbuf source, text;
    cJSON *workloads;
} attempt;

/* A kernel that passed. */
typedef struct beam_entry {
    int round;
    double speedup;
} beam_entry;

typedef struct improvement {
    const workbench_improve_options *options;
    const op_info *op;
    uint64_t deadline;      /* of clock_ns() */
    strbuf history;         /* JSON lines */
    int round, first, best; /* first: rounds of earlier calls; best: its round; 0: none */
    double best_speedup;
    beam_entry beam[BEAM_MOST]; /* the fastest, first */
    int n_beam;
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
    return files_write(path, strbuf_text(text), text->length, error);
}

static const char *ending(const improvement *m)
{
    return m->options->device ? "cu" : "c";
}

static bool is_over(const improvement *m)
{
    const workbench_improve_options *o = m->options;
    return m->round - m->first >= o->rounds || clock_ns() >= m->deadline ||
           (o->cancel && *o->cancel);
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
    snprintf(text, sizeof text, "round %d of %d: %.100s", m->round, m->first + m->options->rounds,
             what);
    if (m->options->progress) m->options->progress(m->options->context, text);
}

/* --- the question ---------------------------------------------------------------------------- */

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

/* The answer that the next one is to follow from: the last, or with a beam one of the fastest in
 * turn. */
static const char *parent_of(const improvement *m, char path[4200])
{
    char name[32];
    if (m->round == 1) return NULL;
    if (m->options->beam > 1 && m->n_beam > 0)
        snprintf(name, sizeof name, "%03d.txt", m->beam[m->round % m->n_beam].round);
    else
        snprintf(name, sizeof name, "verdict.txt");
    path_of(m, name, path);
    return path;
}

/* A command that fails has lost its round, not the others. */
static qp_status ask(const improvement *m, attempt *a, qp_error *error)
{
    char path[4200];
    strbuf page = {0}, answer = {0};
    qp_error why = {0};
    show(m, "the command writes");
    qp_status status =
        workbench_prompt(m->op->name, parent_of(m, path), m->options->device, &page, error);
    if (status == QP_OK) {
        status = shell_run(m->options->command, page.data, page.length,
                           milliseconds_left(m, m->options->command_timeout_ms), m->options->cancel,
                           &answer, &why);
        a->answered = status == QP_OK;
        if (status == QP_CANCELLED)
            error_set(error, status, "round %d: %s", m->round, why.message);
        else
            status = QP_OK;
    }
    if (!a->answered)
        snprintf(a->verdict.detail, sizeof a->verdict.detail, "the command failed: %.400s",
                 why.message);
    if (a->answered) take_source(&answer, &a->source);
    strbuf_free(&page);
    strbuf_free(&answer);
    return status;
}

/* --- times ----------------------------------------------------------------------------------- */

static void time_one(const improvement *m, const candidate *candidate, const char *workload,
                     attempt *a, double *logarithms)
{
    const int length = (int)strcspn(workload, ":");
    const improve_time t = improve_time_of(m->options, candidate, workload, false);
    if (t.declined) {
        strbuf_printf(&a->text, "%.*s: declined\n", length, workload);
        return;
    }
    if (t.status != CHECK_PASSED) {
        a->verdict.status = t.status;
        snprintf(a->verdict.detail, sizeof a->verdict.detail, "workload %.*s: %.400s", length,
                 workload, t.detail);
        return;
    }
    improve_tell(&t, workload, &a->text);
    cJSON *item = cJSON_CreateObject();
    char name[160];
    snprintf(name, sizeof name, "%.*s", length, workload);
    cJSON_AddStringToObject(item, "workload", name);
    cJSON_AddNumberToObject(item, "seconds", t.seconds);
    cJSON_AddStringToObject(item, "compared_with", t.name);
    cJSON_AddNumberToObject(item, "compared_seconds", t.others);
    cJSON_AddNumberToObject(item, "of_reading", t.of_read);
    cJSON_AddItemToArray(a->workloads, item);
    *logarithms += t.others > 0 ? log(t.others / t.seconds) : 0;
    a->n_timed++;
}

static bool is_cancelled(const improvement *m)
{
    return m->options->cancel && *m->options->cancel;
}

static void time_all(const improvement *m, const candidate *candidate, attempt *a)
{
    double logarithms = 0;
    show(m, "timing");
    for (const char *const *text = m->op->workloads; text && *text; text++) {
        if (a->verdict.status != CHECK_PASSED || is_cancelled(m)) return;
        if (improve_is_named(m->options, *text)) time_one(m, candidate, *text, a, &logarithms);
    }
    if (a->n_timed > 0) a->speedup = exp(logarithms / a->n_timed);
}

/* --- the best so far -------------------------------------------------------------------------- */

/* Runs a kernel and the best so far in turn, until it is clear that it does not win. */
static void fight(const improvement *m, const candidate *challenger, const candidate *best,
                  paired_ratio *duel)
{
    int lost = 0;
    show(m, "in turn with the best");
    for (int i = 0; i < DUEL_PAIRS && lost < DUEL_LOST && !is_cancelled(m); i++) {
        const candidate *first = i % 2 ? best : challenger, *second = i % 2 ? challenger : best;
        const double a = improve_mean(m->options, first), b = improve_mean(m->options, second);
        paired_add(duel, i % 2 ? b : a, i % 2 ? a : b);
        if (duel->n <= i || duel->ratio[i] >= 1) lost = duel->n <= i ? DUEL_LOST : lost + 1;
    }
}

static qp_status compare_with_best(const improvement *m, const candidate *challenger, attempt *a,
                                   qp_error *error)
{
    char path[4200], name[16];
    candidate best;
    if (!m->best || a->verdict.status != CHECK_PASSED || a->n_timed == 0) return QP_OK;
    snprintf(name, sizeof name, "best.%s", ending(m));
    path_of(m, name, path);
    TRY(candidate_open(m->op, path, m->options->unconfined, m->options->cancel, &best, error));
    if (best.verdict.status == CHECK_PASSED) fight(m, challenger, &best, &a->duel);
    candidate_close(&best);
    return QP_OK;
}

static bool is_best(const improvement *m, const attempt *a)
{
    if (a->verdict.status != CHECK_PASSED || a->n_timed == 0) return false;
    return !m->best || paired_is_quicker(&a->duel);
}

static void enter_beam(improvement *m, int round, double speedup)
{
    const int most = m->options->beam < 1           ? 1
                     : m->options->beam > BEAM_MOST ? BEAM_MOST
                                                    : m->options->beam;
    int at = m->n_beam < most ? m->n_beam++ : most;
    while (at > 0 && m->beam[at - 1].speedup < speedup) {
        if (at < most) m->beam[at] = m->beam[at - 1];
        at--;
    }
    if (at < most) m->beam[at] = (beam_entry){round, speedup};
}

/* --- what is kept ---------------------------------------------------------------------------- */

static const char *status_of(const attempt *a)
{
    return a->answered ? check_status_name(a->verdict.status) : "NO_ANSWER";
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
    qp_status status = compare_with_best(m, &candidate, a, error);
    candidate_close(&candidate);
    if (status == QP_OK && is_cancelled(m)) return error_set(error, QP_CANCELLED, "interrupted");
    return status;
}

static qp_status add_history(improvement *m, const char *name, const attempt *a, bool best,
                             qp_error *error)
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddNumberToObject(line, "round", m->round);
    cJSON_AddStringToObject(line, "operator", m->op->name);
    cJSON_AddStringToObject(line, "file", name);
    cJSON_AddStringToObject(line, "status", status_of(a));
    cJSON_AddStringToObject(line, "detail", a->verdict.detail);
    cJSON_AddNumberToObject(line, "cases_passed", a->n_passed);
    if (a->n_timed > 0)
        cJSON_AddNumberToObject(line, "speedup", a->speedup);
    else
        cJSON_AddNullToObject(line, "speedup");
    if (a->duel.n > 0) {
        const paired_interval i = paired_of(&a->duel);
        const double figures[] = {i.median, i.low, isfinite(i.high) ? i.high : -1, a->duel.n};
        cJSON_AddItemToObject(line, "of_best", cJSON_CreateDoubleArray(figures, 4));
    }
    cJSON_AddItemToObject(line, "workloads", cJSON_Duplicate(a->workloads, true));
    cJSON_AddBoolToObject(line, "best", best);
    TRY(output_json_line(line, &m->history, error));
    return write_file(m, "history.jsonl", &m->history, error);
}

/* What the program is told of an answer: after the last one, or with a beam when its turn comes. */
static qp_status write_verdict(const improvement *m, const attempt *a, qp_error *error)
{
    char name[32];
    strbuf text = {0};
    strbuf_append(&text, strbuf_text(&a->source), a->source.length);
    strbuf_printf(&text, "\n---- verdict: %s %s\n%s", status_of(a), a->verdict.detail,
                  strbuf_text(&a->text));
    if (a->n_timed > 0)
        strbuf_printf(&text, "in the mean %.3f times as fast as quipu's best kernels\n",
                      a->speedup);
    if (a->duel.n > 0)
        strbuf_printf(&text, "in turn with the best before it: %.3f of its time\n",
                      paired_of(&a->duel).median);
    if (m->best)
        strbuf_printf(&text, "the best so far is that of round %d, %.3f times as fast\n", m->best,
                      m->best_speedup);
    snprintf(name, sizeof name, "%03d.txt", m->round);
    qp_status status = write_file(m, "verdict.txt", &text, error);
    if (status == QP_OK) status = write_file(m, name, &text, error);
    strbuf_free(&text);
    return status;
}

static void print_round(const improvement *m, const char *name, const attempt *a, bool best,
                        strbuf *out)
{
    strbuf_printf(out, "%5d  %-6s  %-20s  ", m->round, name, status_of(a));
    if (a->n_timed == 0) {
        strbuf_printf(out, "%8s  %.*s\n", "-", (int)strcspn(a->verdict.detail, "\n"),
                      a->verdict.detail);
        return;
    }
    strbuf_printf(out, "%8.3f  %s", a->speedup, best ? "best" : "");
    if (a->duel.n > 0)
        strbuf_printf(out, "%s%.3f of the time of the best before it", best ? ", " : "",
                      paired_of(&a->duel).median);
    strbuf_putc(out, '\n');
}

static qp_status run_round(improvement *m, attempt *a, strbuf *out, qp_error *error)
{
    char name[32], best_name[16];
    snprintf(name, sizeof name, "%03d.%s", m->round, ending(m));
    snprintf(best_name, sizeof best_name, "best.%s", ending(m));
    TRY(ask(m, a, error));
    TRY(write_file(m, name, &a->source, error));
    if (a->answered) TRY(judge(m, name, a, error));
    const bool passed = a->answered && a->verdict.status == CHECK_PASSED && a->n_timed > 0;
    const bool best = passed && is_best(m, a);
    if (passed) enter_beam(m, m->round, a->speedup);
    if (best) {
        m->best = m->round;
        m->best_speedup = a->speedup;
        TRY(write_file(m, best_name, &a->source, error));
    }
    TRY(add_history(m, name, a, best, error));
    TRY(write_verdict(m, a, error));
    print_round(m, name, a, best, out);
    return QP_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Without a workload no kernel would be timed, and none the best. */
static qp_status check_workload(const op_info *op, const workbench_improve_options *o,
                                qp_error *error)
{
    const char *wanted = o->workload;
    for (const char *const *text = op->workloads; text && *text; text++)
        if (improve_is_named(o, *text)) return QP_OK;
    if (!wanted)
        return error_set(error, QP_INVALID, "%s has no workloads to time kernels on", op->name);
    return error_set(
        error, QP_INVALID,
        "no workload of %s has '%.60s' in its name; `quipu ops describe %s` lists them", op->name,
        wanted, op->name);
}

/* A round of an earlier call. */
static qp_status recall(improvement *m, const cJSON *line, const char *path, qp_error *error)
{
    const cJSON *of = json_get(line, "operator"), *speedup = json_get(line, "speedup");
    const cJSON *round = json_get(line, "round"), *file = json_get(line, "file");
    if (!cJSON_IsString(of) || strcmp(of->valuestring, m->op->name) != 0 ||
        !cJSON_IsNumber(round) || round->valueint != m->round + 1 || !cJSON_IsString(file) ||
        strcmp(strrchr(file->valuestring, '.') ? strrchr(file->valuestring, '.') + 1 : "",
               ending(m)) != 0)
        return error_set(error, QP_FORMAT,
                         "%s: line %d is no round %d of %s in a .%s file: name another folder with "
                         "--out",
                         path, m->round + 1, m->round + 1, m->op->name, ending(m));
    m->round++;
    if (!cJSON_IsNumber(speedup)) return QP_OK;
    const cJSON *status = json_get(line, "status");
    if (cJSON_IsString(status) && strcmp(status->valuestring, "PASSED") == 0)
        enter_beam(m, m->round, speedup->valuedouble);
    if (!cJSON_IsTrue(json_get(line, "best"))) return QP_OK;
    m->best = m->round;
    m->best_speedup = speedup->valuedouble;
    return QP_OK;
}

static qp_status resume(improvement *m, const char *path, qp_error *error)
{
    TRY(files_read(path, 1 << 28, &m->history, error));
    qp_status status = QP_OK;
    for (const char *at = strbuf_text(&m->history); status == QP_OK && *at;) {
        const size_t length = strcspn(at, "\n");
        cJSON *line = cJSON_ParseWithLength(at, length);
        status = recall(m, line, path, error);
        cJSON_Delete(line);
        at += length + (at[length] == '\n');
    }
    m->first = m->round;
    return status;
}

static qp_status begin(improvement *m, qp_error *error)
{
    char path[4200];
    const workbench_improve_options *o = m->options;
    TRY(describe_find(o->op, &m->op, error));
    TRY(check_workload(m->op, o, error));
    if (o->device) TRY(device_is_here("--device cuda", error));
    path_of(m, "history.jsonl", path);
    const bool there = access(path, F_OK) == 0;
    if (there && !o->resume)
        return error_set(error, QP_INVALID,
                         "%s exists: go on with --resume, name another folder with --out, or "
                         "remove that one",
                         path);
    if (there) TRY(resume(m, path, error));
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
                  "%s/best.%s\n",
                  m.best, m.best_speedup, options->folder, ending(&m));
    return output_done(out, error);
}
