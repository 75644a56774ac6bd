/* Reads FlashInfer-Bench solutions, judges them on the workloads of their definitions, and prints a
 * trace for each.
 *
 * A solution whose entry point is a kernel as in quipu_kernel.h ("rms_norm.c::rms_norm_kernel" for
 * rmsnorm_h4096) is checked as `ops check` does. Every other one is a function of the definition's
 * inputs, and is compared with the definition's reference, which is Python; where Python cannot run
 * it and the definition is one of quipu's own, with the operator's reference.
 */
#include "workbench/import.h"

#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "workbench/dataset.h"
#include "workbench/exchange.h"
#include "workbench/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The state of the command. */
typedef struct importer {
    const workbench_import_options *options;
    const char *folder; /* of the data set; NULL: the definitions that export writes */
    dataset_list definitions, workloads, solutions;
    strbuf *out, *notes;
    int *n_failed;
} importer;

/* A solution with its definition. */
typedef struct entry {
    schema_solution solution;
    schema_definition definition;
    const definition *own; /* NULL: not one of quipu's own */
    solution_files files, reference;
} entry;

static void note(importer *im, const qp_error *error)
{
    strbuf_printf(im->notes, "%s\n", error->message);
    ++*im->n_failed;
}

/* --- a workload ------------------------------------------------------------------------------ */

static qp_status add_trace(importer *im, const entry *e, const cJSON *workload,
                           const evaluation *found, const char *log, qp_error *error)
{
    char path[4400];
    strbuf line = {0};
    bool on_gpu = e->files.library.cuda || (im->options->device && !e->files.library.library[0]);
    cJSON *trace = trace_json(e->definition.name, cJSON_Duplicate(workload, true), e->solution.name,
                              found, log, on_gpu);
    qp_status status = output_json_line(trace, &line, error);
    *im->n_failed += found->verdict.status != CHECK_PASSED;
    if (status == QP_OK) strbuf_append(im->out, line.data, line.length);
    if (status == QP_OK && im->options->save && im->folder) {
        snprintf(path, sizeof path, "%.4000s/traces/%.100s/%.200s.jsonl", im->folder,
                 e->definition.op_type, e->definition.name);
        status = files_append(path, line.data, line.length, error);
    }
    strbuf_free(&line);
    return status;
}

/* By the definition's reference, with quipu's own beside it if there is one; or by quipu's own
 * alone, where Python lacks what the definition's needs. */
static qp_status judge_function(importer *im, entry *e, const schema_workload *workload,
                                evaluation *found, qp_error *error)
{
    const workbench_import_options *o = im->options;
    const evaluate_options options = {.atol = o->atol,
                                      .rtol = o->rtol,
                                      .rounds = o->rounds,
                                      .seed = o->seed,
                                      .folder = im->folder,
                                      .function = {.python = o->python,
                                                   .cuda = o->device,
                                                   .unconfined = o->unconfined,
                                                   .threads = o->threads,
                                                   .timeout_ms = o->timeout_ms,
                                                   .cancel = o->cancel}};
    function_source own, solution = solution_source(&e->solution, &e->files);
    function_source reference = solution_reference_source(&e->reference);
    bool has_own = own_source(e->own, &e->definition, workload, &own);
    qp_status status = evaluate(&e->definition, workload, &reference, has_own ? &own : NULL,
                                &solution, &options, found, error);
    if (status != QP_UNSUPPORTED || !has_own) return status;
    const qp_error why = *error;
    TRY(evaluate(&e->definition, workload, &own, NULL, &solution, &options, found, error));
    if (found->verdict.status == CHECK_PASSED)
        snprintf(found->verdict.detail, sizeof found->verdict.detail,
                 "compared with quipu's %s; %.300s", e->own->op, why.message);
    return QP_OK;
}

static qp_status judge(importer *im, entry *e, const schema_workload *workload, qp_error *error)
{
    const workbench_import_options *options = im->options;
    evaluation found = {.verdict = e->files.library.verdict}; /* of compiling it */
    char what[400], text[1024];
    snprintf(what, sizeof what, "%.100s on %.100s", e->solution.name, e->definition.name);
    if (options->progress) options->progress(options->context, what);
    if (import_is_kernel(&e->solution, e->own)) {
        own_case(e->own, &e->definition, workload, text, sizeof text);
        import_kernel(options, &e->files.library, text, &found);
    } else if (found.verdict.status == CHECK_PASSED) {
        qp_status status = judge_function(im, e, workload, &found, error);
        if (options->cancel && *options->cancel)
            return error_set(error, QP_CANCELLED, "interrupted");
        if (status != QP_OK) {
            note(im, error);
            return QP_OK;
        }
    }
    return add_trace(im, e, workload->tree, &found, solution_log(&e->files), error);
}

/* --- a solution ------------------------------------------------------------------------------ */

static qp_status judge_workloads(importer *im, entry *e, qp_error *error)
{
    bool any = false;
    for (size_t i = 0; i < im->workloads.n; i++) {
        const dataset_item *item = &im->workloads.items[i];
        const char *name = cJSON_GetStringValue(json_get(item->tree, "definition"));
        schema_workload workload;
        if (!name || strcmp(name, e->definition.name) != 0) continue;
        any = true;
        if (schema_read_workload(&e->definition, json_get(item->tree, "workload"), item->where,
                                 &workload, error) == QP_OK)
            TRY(judge(im, e, &workload, error));
        else
            note(im, error);
    }
    if (any) return QP_OK;
    return error_set(error, QP_FORMAT, "there are no workloads of definition '%.100s'",
                     e->definition.name);
}

static qp_status need_data(const char *where, const entry *e, qp_error *error)
{
    const bool cuda = strcmp(e->solution.language, "cuda") == 0;
    return error_set(error, QP_FORMAT,
                     "%s: entry_point must be FILE::%s_%s for %s, found \"%.100s\"; a function of "
                     "the definition's inputs needs a data set with workloads: --data FOLDER",
                     where, e->own ? e->own->op : "operator", cuda ? "launch" : "kernel",
                     e->definition.name, e->solution.entry);
}

/* Finds the definition, and writes and compiles the sources. */
static qp_status open_entry(importer *im, const dataset_item *item, entry *e, qp_error *error)
{
    TRY(schema_read_solution(item->tree, item->where, &e->solution, error));
    const dataset_item *found = dataset_find(&im->definitions, e->solution.definition);
    if (!found)
        return error_set(error, QP_UNSUPPORTED, "%s: definition '%.100s' is not %s", item->where,
                         e->solution.definition,
                         im->folder ? "in the data set"
                                    : "among those that `quipu ops export` writes; --data names "
                                      "another data set");
    TRY(schema_read_definition(found->tree, found->where, &e->definition, error));
    e->own = own_find(&e->definition);
    TRY(solution_write(&e->solution, item->where, &e->files, error));
    TRY(solution_write_reference(&e->definition, &e->reference, error));
    bool is_kernel = import_is_kernel(&e->solution, e->own);
    if (!is_kernel && !im->folder) return need_data(item->where, e, error);
    if (!is_kernel && strcmp(e->solution.language, "c") != 0) {
        if (im->options->unconfined) return QP_OK;
        return error_set(error, QP_UNSUPPORTED, "%s: %s", item->where, function_not_confined);
    }
    return solution_compile(&e->files, is_kernel ? op_find(e->own->op) : NULL,
                            im->options->unconfined, im->options->cancel, error);
}

static qp_status judge_solution(importer *im, const dataset_item *item, qp_error *error)
{
    entry *e = calloc(1, sizeof *e);
    if (!e) return error_no_memory(error, "a solution", sizeof *e);
    qp_status status = open_entry(im, item, e, error);
    if (status == QP_OK) status = judge_workloads(im, e, error);
    solution_remove(&e->files);
    solution_remove(&e->reference);
    free(e);
    return status;
}

/* All solutions of the data set; one that cannot be judged does not end the others. */
static qp_status judge_all(importer *im, qp_error *error)
{
    size_t n_judged = 0;
    for (size_t i = 0; i < im->solutions.n; i++) {
        const dataset_item *item = &im->solutions.items[i];
        const char *name = cJSON_GetStringValue(json_get(item->tree, "definition"));
        if (im->options->definition && (!name || strcmp(name, im->options->definition) != 0))
            continue;
        n_judged++;
        qp_status status = judge_solution(im, item, error);
        if (status == QP_CANCELLED) return status;
        if (status != QP_OK) note(im, error);
    }
    if (n_judged > 0) return QP_OK;
    return error_set(error, QP_INVALID, "%.2000s: it has no solutions%s%.100s", im->folder,
                     im->options->definition ? " of definition " : "",
                     im->options->definition ? im->options->definition : "");
}

/* --- the command ----------------------------------------------------------------------------- */

static qp_status read_data(importer *im, qp_error *error)
{
    if (!im->folder) return exchange_list(&im->definitions, &im->workloads, error);
    TRY(dataset_read_part(im->folder, "definitions", &im->definitions, error));
    TRY(dataset_read_part(im->folder, "workloads", &im->workloads, error));
    if (im->definitions.n > 0) return QP_OK;
    return error_set(error, QP_FORMAT,
                     "%.2000s: it has no definitions; a data set has the folders definitions, "
                     "workloads and solutions",
                     im->folder);
}

qp_status workbench_import(const char *path, const workbench_import_options *options, strbuf *out,
                           strbuf *notes, int *n_failed, qp_error *error)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return error_set(error, QP_IO, "%.2000s: cannot be opened: %s", path, strerror(errno));
    bool whole = S_ISDIR(about.st_mode);
    importer im = {.options = options,
                   .folder = whole ? path : options->data,
                   .out = out,
                   .notes = notes,
                   .n_failed = n_failed};
    *n_failed = 0;
    if (options->save && !im.folder)
        return error_set(error, QP_INVALID, "--save needs a data set: give --data FOLDER");
    qp_status status = read_data(&im, error);
    if (status == QP_OK)
        status = whole ? dataset_read_part(path, "solutions", &im.solutions, error)
                       : dataset_read(path, &im.solutions, error);
    if (status == QP_OK && !whole && im.solutions.n != 1)
        status = error_set(error, QP_IO, "%.2000s: expected a solution's .json file, or a data set",
                           path);
    if (status == QP_OK)
        status = whole ? judge_all(&im, error) : judge_solution(&im, im.solutions.items, error);
    dataset_free(&im.definitions);
    dataset_free(&im.workloads);
    dataset_free(&im.solutions);
    return status;
}
