/* Judges solutions: see evaluate.h. */
#include "workbench/evaluate.h"

#include "workbench/samples.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 3, ROUND_NS = 20000000, MOST_CALLS = 10000, MOST_ROUNDS = 1000 };

/* A function under evaluation, and why it failed. */
typedef struct contestant {
    function *function;
    check_status status;
    char detail[CHECK_DETAIL_SIZE - 16];
    uint64_t call_ns; /* of the last single call */
    uint32_t calls;   /* of a round */
    double rounds_ns[MOST_ROUNDS];
} contestant;

typedef struct judge {
    const evaluate_options *options;
    arguments arguments;
    contestant reference, own, solution;
    char *expected;   /* a copy of what the reference left in its memory; of samples: NULL */
    samples *samples; /* of definitions of op_type sampling */
    evaluation *out;
} judge;

#define FAILURE(c) &(c)->status, (c)->detail, sizeof(c)->detail

static bool open(judge *j, const function_source *source, contestant *c)
{
    return function_open(source, &j->arguments, &j->options->function, &c->function, FAILURE(c));
}

/* One call on the current inputs; `memory` has the results. */
static bool call(judge *j, contestant *c, const char **memory)
{
    return function_put(c->function, &j->arguments, FAILURE(c)) &&
           function_run(c->function, 1, &c->call_ns, FAILURE(c)) &&
           function_results(c->function, memory, FAILURE(c));
}

/* --- comparing ------------------------------------------------------------------------------- */

static void describe_wrong(const judge *j, int t, const char *copy, const values_error *found,
                           char *text, size_t size)
{
    const arguments *a = &j->arguments;
    const schema_tensor *tensor = &a->definition->tensors[t];
    snprintf(text, size,
             "%.60s: %zu of %zu elements are wrong, the first, %zu, is %.9g, expected %.9g",
             tensor->name, found->n_wrong, found->n, found->first,
             value_at(tensor->type, copy, found->first),
             value_at(tensor->type, j->expected + a->offset[t], found->first));
}

/* Compares the outputs in `memory`, whose process may still write there, with the expected ones. */
static bool compare(judge *j, contestant *c, const char *memory, double *absolute, double *relative)
{
    const arguments *a = &j->arguments;
    const schema_definition *definition = a->definition;
    for (int t = definition->n_inputs; t < definition->n_inputs + definition->n_outputs; t++) {
        values_error found = {0};
        char *copy = malloc(arguments_bytes(a, t) + 1);
        c->status = copy ? CHECK_PASSED : CHECK_RUNTIME_ERROR;
        snprintf(c->detail, sizeof c->detail, "%s", copy ? "" : "out of memory");
        if (!copy) return false;
        memcpy(copy, memory + a->offset[t], arguments_bytes(a, t));
        values_compare(definition->tensors[t].type, copy, j->expected + a->offset[t],
                       a->elements[t], j->options->atol, j->options->rtol, &found);
        if (found.absolute > *absolute) *absolute = found.absolute;
        if (found.relative > *relative) *relative = found.relative;
        if (found.n_wrong > 0) {
            c->status = CHECK_INCORRECT_NUMERICAL;
            describe_wrong(j, t, copy, &found, c->detail, sizeof c->detail);
        }
        free(copy);
        if (found.n_wrong > 0) return false;
    }
    return true;
}

static qp_status reference_failed(const judge *j, const contestant *c, const char *whose,
                                  qp_error *error)
{
    if (c->status == CHECK_COMPILE_ERROR)
        return error_set(error, QP_UNSUPPORTED,
                         "%.100s, workload %.60s: not judged here, because %s cannot be loaded: "
                         "%.300s",
                         j->arguments.definition->name, j->arguments.workload->uuid, whose,
                         c->detail);
    return error_set(error, QP_FORMAT, "%.100s, workload %.60s: %s: %s: %.300s",
                     j->arguments.definition->name, j->arguments.workload->uuid, whose,
                     check_status_name(c->status), c->detail);
}

/* Calls the references on new inputs, and keeps the expected results. */
static qp_status call_references(judge *j, uint64_t seed, qp_error *error)
{
    const char *memory;
    double absolute = 0, relative = 0;
    arguments_randomize(&j->arguments, seed);
    if (!call(j, &j->reference, &memory))
        return reference_failed(j, &j->reference, "the reference", error);
    memcpy(j->expected, memory, j->arguments.total);
    if (!j->own.function) return QP_OK;
    if (call(j, &j->own, &memory) && compare(j, &j->own, memory, &absolute, &relative))
        return QP_OK;
    return reference_failed(j, &j->own, "quipu's own reference disagrees with the definition's",
                            error);
}

/* One run of the solution on new inputs. QP_OK also where it is wrong: its status says so. */
static qp_status try_solution(judge *j, uint64_t seed, qp_error *error)
{
    contestant *c = &j->solution;
    check_verdict *verdict = &j->out->verdict;
    const char *memory;
    TRY(call_references(j, seed, error));
    verdict->runs++;
    if (!call(j, c, &memory)) return QP_OK;
    if (!arguments_intact(&j->arguments, memory, c->detail, sizeof c->detail)) {
        c->status = CHECK_RUNTIME_ERROR;
        return QP_OK;
    }
    compare(j, c, memory, &verdict->absolute_error, &verdict->relative_error);
    return QP_OK;
}

/* --- samples --------------------------------------------------------------------------------- */

/* A right sampler is nearer by far; the package allows 0.2, which counts each token by itself. */
static const double most_distance = 0.1;

static void refuse_samples(contestant *c, double distance)
{
    c->status = CHECK_INCORRECT_NUMERICAL;
    snprintf(c->detail, sizeof c->detail,
             "the total variation distance of its samples from the expected ones is %.3f, at most "
             "%.2f is right",
             distance, most_distance);
}

/* Draws tokens with new inputs, again and again with the same ones. QP_OK also where the solution
 * is wrong: its status says so. */
static qp_status try_samples(judge *j, uint64_t seed, qp_error *error)
{
    contestant *c = &j->solution;
    const char *memory;
    uint64_t ns;
    arguments_randomize(&j->arguments, seed);
    samples_free(j->samples);
    TRY(samples_create(&j->arguments, &j->samples, error));
    j->out->verdict.runs++;
    for (int i = samples_calls(j->samples); i > 0; i--) {
        const bool done = i == samples_calls(j->samples)
                              ? call(j, c, &memory)
                              : function_run(c->function, 1, &ns, FAILURE(c)) &&
                                    function_results(c->function, &memory, FAILURE(c));
        if (!done) return QP_OK;
        if (!samples_add(j->samples, memory, c->detail, sizeof c->detail)) {
            c->status = CHECK_INCORRECT_NUMERICAL;
            return QP_OK;
        }
    }
    const double distance = samples_distance(j->samples);
    if (!arguments_intact(&j->arguments, memory, c->detail, sizeof c->detail))
        c->status = CHECK_RUNTIME_ERROR;
    else if (distance > most_distance)
        refuse_samples(c, distance);
    if (distance > j->out->verdict.absolute_error) j->out->verdict.absolute_error = distance;
    return QP_OK;
}

/* The reference is called for its time only, because its results are random too. */
static qp_status call_for_time(judge *j, qp_error *error)
{
    const char *memory;
    if (call(j, &j->reference, &memory)) return QP_OK;
    return reference_failed(j, &j->reference, "the reference", error);
}

/* --- timing ---------------------------------------------------------------------------------- */

static bool time_round(contestant *c, int round)
{
    uint64_t ns;
    if (!function_run(c->function, c->calls, &ns, FAILURE(c))) return false;
    c->rounds_ns[round] = (double)ns / c->calls;
    return true;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ms(contestant *c, int n)
{
    qsort(c->rounds_ns, (size_t)n, sizeof *c->rounds_ns, by_size);
    return (n % 2 ? c->rounds_ns[n / 2] : (c->rounds_ns[n / 2 - 1] + c->rounds_ns[n / 2]) / 2) *
           1e-6;
}

/* As many calls as take ROUND_NS, as far as the last one tells. */
static void choose_calls(contestant *c)
{
    uint64_t calls = ROUND_NS / (c->call_ns + 1) + 1;
    c->calls = calls < MOST_CALLS ? (uint32_t)calls : MOST_CALLS;
}

/* Rounds of both in turn. */
static qp_status time_both(judge *j, qp_error *error)
{
    int n = j->options->rounds < MOST_ROUNDS ? j->options->rounds : MOST_ROUNDS;
    choose_calls(&j->reference);
    choose_calls(&j->solution);
    for (int round = 0; round < n; round++) {
        if (!time_round(&j->reference, round))
            return reference_failed(j, &j->reference, "the reference", error);
        if (!time_round(&j->solution, round)) return QP_OK;
    }
    j->out->latency_ms = median_ms(&j->solution, n);
    j->out->reference_ms = median_ms(&j->reference, n);
    return QP_OK;
}

/* --- the evaluation -------------------------------------------------------------------------- */

static qp_status open_references(judge *j, const function_source *reference,
                                 const function_source *own, qp_error *error)
{
    j->expected = malloc(j->arguments.total);
    if (!j->expected) return error_no_memory(error, "expected results", j->arguments.total);
    if (!open(j, reference, &j->reference))
        return reference_failed(j, &j->reference, "the reference", error);
    if (own && !open(j, own, &j->own))
        return reference_failed(j, &j->own, "quipu's own reference", error);
    return QP_OK;
}

static bool is_sampling(const judge *j)
{
    return strcmp(j->arguments.definition->op_type, "sampling") == 0;
}

static qp_status judge_sampler(judge *j, qp_error *error)
{
    TRY(try_samples(j, j->options->seed, error));
    if (j->solution.status == CHECK_PASSED) TRY(call_for_time(j, error));
    if (j->solution.status == CHECK_PASSED) TRY(time_both(j, error));
    if (j->solution.status == CHECK_PASSED) TRY(try_samples(j, j->options->seed + 1, error));
    return QP_OK;
}

static qp_status judge_solution(judge *j, const function_source *solution, qp_error *error)
{
    contestant *c = &j->solution;
    if (!open(j, solution, c)) return QP_OK;
    c->status = CHECK_PASSED;
    if (is_sampling(j)) return judge_sampler(j, error);
    for (int trial = 0; trial < TRIALS && c->status == CHECK_PASSED; trial++)
        TRY(try_solution(j, j->options->seed + (uint64_t)trial, error));
    if (c->status == CHECK_PASSED) TRY(time_both(j, error));
    if (c->status == CHECK_PASSED) TRY(try_solution(j, j->options->seed + TRIALS, error));
    return QP_OK;
}

qp_status evaluate(const schema_definition *definition, const schema_workload *workload,
                   const function_source *reference, const function_source *own,
                   const function_source *solution, const evaluate_options *options,
                   evaluation *out, qp_error *error)
{
    *out = (evaluation){0};
    judge *j = calloc(1, sizeof *j);
    if (!j) return error_no_memory(error, "an evaluation", sizeof *j);
    j->options = options;
    j->out = out;
    qp_status status = arguments_create(definition, workload, options->folder, options->seed,
                                        &j->arguments, error);
    if (status == QP_OK) status = open_references(j, reference, own, error);
    if (status == QP_OK) status = judge_solution(j, solution, error);
    out->verdict.status = j->solution.status;
    snprintf(out->verdict.detail, sizeof out->verdict.detail, "%s",
             j->solution.status == CHECK_PASSED ? "" : j->solution.detail);
    function_close(j->reference.function);
    function_close(j->own.function);
    function_close(j->solution.function);
    arguments_free(&j->arguments);
    samples_free(j->samples);
    free(j->expected);
    free(j);
    return status;
}
