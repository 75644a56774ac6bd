/* Compares solutions by their traces. Solutions are compared on the same hardware only; of several
 * traces of a solution on a workload the last counts. */
#include "workbench/workbench.h"

#include "base/json.h"
#include "base/output.h"
#include "workbench/dataset.h"
#include "workbench/page.h"
#include "workbench/schema.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a trace says. */
typedef struct result {
    const char *definition, *hardware, *uuid, *solution;
    const cJSON *axes;
    bool passed;
    double latency_ms, speedup;
    size_t order; /* of reading */
} result;

/* A solution's sums over the workloads of a definition. */
typedef struct standing {
    const char *solution;
    int n, n_passed, n_fastest;
    double logs; /* of the speedups */
} standing;

typedef struct board {
    const result *results; /* of one definition on one hardware, by workload */
    size_t n;
    standing *standings;
    int n_standings;
} board;

static qp_status read_result(const dataset_item *item, result *out, qp_error *error)
{
    const cJSON *workload = json_get(item->tree, "workload");
    const cJSON *evaluation = json_get(item->tree, "evaluation");
    const cJSON *performance = json_get(evaluation, "performance");
    const char *status;
    TRY(schema_string(item->tree, "definition", item->where, &out->definition, error));
    TRY(schema_string(item->tree, "solution", item->where, &out->solution, error));
    TRY(schema_string(workload, "uuid", item->where, &out->uuid, error));
    TRY(schema_string(evaluation, "status", item->where, &status, error));
    TRY(schema_string(json_get(evaluation, "environment"), "hardware", item->where, &out->hardware,
                      error));
    out->axes = json_get(workload, "axes");
    out->passed = strcmp(status, "PASSED") == 0;
    if (!out->passed) return QP_OK;
    TRY(json_get_double(performance, "latency_ms", item->where, &out->latency_ms, error));
    TRY(json_get_double(performance, "speedup_factor", item->where, &out->speedup, error));
    if (out->latency_ms > 0 && out->speedup > 0) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%s: a trace that is PASSED needs a latency_ms and a speedup_factor above 0",
                     item->where);
}

/* By definition, hardware, workload and solution, the last of those first. */
static int compare(const void *left, const void *right)
{
    const result *a = left, *b = right;
    int sign = strcmp(a->definition, b->definition);
    if (sign == 0) sign = strcmp(a->hardware, b->hardware);
    if (sign == 0) sign = strcmp(a->uuid, b->uuid);
    if (sign == 0) sign = strcmp(a->solution, b->solution);
    return sign ? sign : (a->order < b->order) - (a->order > b->order);
}

static bool same_board(const result *a, const result *b)
{
    return strcmp(a->definition, b->definition) == 0 && strcmp(a->hardware, b->hardware) == 0;
}

static bool same_workload(const result *a, const result *b)
{
    return same_board(a, b) && strcmp(a->uuid, b->uuid) == 0;
}

/* Leaves one result for a solution and workload; returns how many there are. */
static size_t keep_last(result *results, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const result *last = kept ? &results[kept - 1] : NULL;
        if (last && same_workload(last, &results[i]) &&
            strcmp(last->solution, results[i].solution) == 0)
            continue;
        results[kept++] = results[i];
    }
    return kept;
}

/* --- a definition on some hardware ----------------------------------------------------------- */

static standing *standing_of(board *b, const char *solution)
{
    for (int i = 0; i < b->n_standings; i++) {
        if (strcmp(b->standings[i].solution, solution) == 0) return &b->standings[i];
    }
    b->standings[b->n_standings] = (standing){.solution = solution};
    return &b->standings[b->n_standings++];
}

/* The results of the workload that begins at `from`: how many, and the fastest that passed. */
static size_t workload_at(const board *b, size_t from, const result **fastest)
{
    size_t n = 0;
    *fastest = NULL;
    for (; from + n < b->n && same_workload(&b->results[from], &b->results[from + n]); n++) {
        const result *r = &b->results[from + n];
        if (r->passed && (!*fastest || r->latency_ms < (*fastest)->latency_ms)) *fastest = r;
    }
    return n;
}

static double mean_speedup(const standing *s)
{
    return s->n_passed ? exp(s->logs / s->n_passed) : 0;
}

/* Most workloads won, then passed, then the higher mean. */
static int by_rank(const void *left, const void *right)
{
    const standing *a = left, *b = right;
    if (a->n_fastest != b->n_fastest) return b->n_fastest - a->n_fastest;
    if (a->n_passed != b->n_passed) return b->n_passed - a->n_passed;
    const double x = mean_speedup(a), y = mean_speedup(b);
    return x != y ? (x < y) - (x > y) : strcmp(a->solution, b->solution);
}

static void count(board *b)
{
    for (size_t i = 0; i < b->n; i++) {
        standing *s = standing_of(b, b->results[i].solution);
        s->n++;
        s->n_passed += b->results[i].passed;
        if (b->results[i].passed) s->logs += log(b->results[i].speedup);
    }
    const result *fastest;
    for (size_t i = 0, n; i < b->n; i += n) {
        n = workload_at(b, i, &fastest);
        if (fastest) standing_of(b, fastest->solution)->n_fastest++;
    }
    qsort(b->standings, (size_t)b->n_standings, sizeof *b->standings, by_rank);
}

/* --- the answer ------------------------------------------------------------------------------ */

static void axes_text(const cJSON *axes, char *text, size_t size)
{
    const cJSON *axis;
    size_t used = 0;
    text[0] = '\0';
    cJSON_ArrayForEach(axis, axes)
    {
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%.60s=%.0f", used ? " " : "",
                                     axis->string, axis->valuedouble);
    }
}

/* Three digits, without an exponent. */
static void number_text(double value, char *text, size_t size)
{
    snprintf(text, size, "%.*f", value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3, value);
}

static void print_standings(const board *b, strbuf *out)
{
    page table = {.out = out, .level = 1};
    page_table(&table, 4,
               (const char *const[]){"solution", ">passed", ">fastest on", ">mean speedup"});
    for (int i = 0; i < b->n_standings; i++) {
        const standing *s = &b->standings[i];
        char name[256], passed[48], fastest[24], speedup[32] = "-";
        snprintf(name, sizeof name, "%.250s", s->solution);
        snprintf(passed, sizeof passed, "%d of %d", s->n_passed, s->n);
        snprintf(fastest, sizeof fastest, "%d", s->n_fastest);
        if (s->n_passed) number_text(mean_speedup(s), speedup, sizeof speedup);
        page_row(&table, (const char *const[]){name, passed, fastest, speedup});
    }
    page_table_end(&table);
    strbuf_free(&table.cells);
}

static void print_workloads(const board *b, strbuf *out)
{
    page table = {.out = out, .level = 1};
    const result *fastest;
    page_table(&table, 4,
               (const char *const[]){"workload", "fastest solution", ">latency, us", ">speedup"});
    for (size_t i = 0, n; i < b->n; i += n) {
        char axes[400], name[256] = "none passed", latency[32] = "-", speedup[32] = "-";
        n = workload_at(b, i, &fastest);
        axes_text(b->results[i].axes, axes, sizeof axes);
        if (fastest) {
            snprintf(name, sizeof name, "%.250s", fastest->solution);
            number_text(fastest->latency_ms * 1e3, latency, sizeof latency);
            number_text(fastest->speedup, speedup, sizeof speedup);
        }
        page_row(&table, (const char *const[]){axes, name, latency, speedup});
    }
    page_table_end(&table);
    strbuf_free(&table.cells);
}

static void print_board(const board *b, strbuf *out)
{
    strbuf_printf(out, "%s%s, %s\n", out->length ? "\n" : "", b->results->definition,
                  b->results->hardware);
    print_standings(b, out);
    print_workloads(b, out);
}

static cJSON *board_json(const board *b)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "definition", b->results->definition);
    cJSON_AddStringToObject(tree, "hardware", b->results->hardware);
    cJSON *solutions = cJSON_AddArrayToObject(tree, "solutions");
    for (int i = 0; i < b->n_standings; i++) {
        const standing *s = &b->standings[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(solutions, item);
        cJSON_AddStringToObject(item, "solution", s->solution);
        cJSON_AddNumberToObject(item, "workloads", s->n);
        cJSON_AddNumberToObject(item, "passed", s->n_passed);
        cJSON_AddNumberToObject(item, "fastest", s->n_fastest);
        if (s->n_passed) cJSON_AddNumberToObject(item, "mean_speedup", mean_speedup(s));
    }
    cJSON *workloads = cJSON_AddArrayToObject(tree, "workloads");
    const result *fastest;
    for (size_t i = 0, n; i < b->n; i += n) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(workloads, item);
        cJSON_AddStringToObject(item, "uuid", b->results[i].uuid);
        cJSON_AddItemToObject(item, "axes", cJSON_Duplicate(b->results[i].axes, true));
        n = workload_at(b, i, &fastest);
        if (!fastest) continue;
        cJSON_AddStringToObject(item, "fastest", fastest->solution);
        cJSON_AddNumberToObject(item, "latency_ms", fastest->latency_ms);
        cJSON_AddNumberToObject(item, "speedup_factor", fastest->speedup);
    }
    return tree;
}

/* Board by board; `boards` (may be NULL) takes them as JSON. */
static qp_status write_boards(const result *results, size_t n, cJSON *boards, strbuf *out,
                              qp_error *error)
{
    for (size_t from = 0, end; from < n; from = end) {
        for (end = from; end < n && same_board(&results[from], &results[end]);)
            end++;
        board b = {.results = results + from, .n = end - from};
        b.standings = calloc(b.n, sizeof *b.standings);
        if (!b.standings) return error_no_memory(error, "a board", b.n * sizeof *b.standings);
        count(&b);
        if (boards)
            cJSON_AddItemToArray(boards, board_json(&b));
        else
            print_board(&b, out);
        free(b.standings);
    }
    return QP_OK;
}

/* Other objects are workloads. */
static bool is_trace(const dataset_item *item)
{
    return json_get(item->tree, "evaluation") != NULL;
}

static size_t count_traces(const dataset_list *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        n += is_trace(&list->items[i]);
    return n;
}

static qp_status read_results(const dataset_list *traces, result *results, size_t *n,
                              qp_error *error)
{
    *n = 0;
    for (size_t i = 0; i < traces->n; i++) {
        if (!is_trace(&traces->items[i])) continue;
        results[*n] = (result){.order = i};
        TRY(read_result(&traces->items[i], &results[(*n)++], error));
    }
    qsort(results, *n, sizeof *results, compare);
    *n = keep_last(results, *n);
    return QP_OK;
}

static qp_status compare_all(const dataset_list *traces, bool json, strbuf *out, qp_error *error)
{
    size_t n;
    result *results = calloc(traces->n + 1, sizeof *results);
    if (!results) return error_no_memory(error, "traces", traces->n * sizeof *results);
    qp_status status = read_results(traces, results, &n, error);
    cJSON *boards = json ? cJSON_CreateArray() : NULL;
    if (status == QP_OK) status = write_boards(results, n, boards, out, error);
    if (status == QP_OK && json)
        status = output_json(boards, out, error);
    else
        cJSON_Delete(boards);
    free(results);
    return status;
}

qp_status workbench_leaderboard(const char *path, bool json, strbuf *out, qp_error *error)
{
    char inner[4096];
    struct stat about;
    dataset_list traces = {0};
    snprintf(inner, sizeof inner, "%.4000s/traces", path);
    const char *found = stat(inner, &about) == 0 ? inner : path;
    if (stat(found, &about) != 0)
        return error_set(error, QP_IO, "%.2000s: cannot open: %s", path, strerror(errno));
    qp_status status = dataset_read(found, &traces, error);
    if (status == QP_OK && count_traces(&traces) == 0)
        status = error_set(error, QP_IO,
                           "%.2000s: it has no traces; expected a data set, or a "
                           ".jsonl file of traces",
                           path);
    if (status == QP_OK) status = compare_all(&traces, json, out, error);
    dataset_free(&traces);
    return status == QP_OK ? output_done(out, error) : status;
}
