/* A search over assignments and orders: see tune.h. The verifier judges, the machine measures. */
#include "inspect/tune.h"

#include "base/clock.h"
#include "base/paired.h"
#include "inspect/timed.h"
#include "schedule/build.h"
#include "schedule/cost.h"
#include "schedule/neighbour.h"
#include "schedule/predict.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STRATEGIES = SCHEDULE_POOL + 1, CLIMB = 200, MOST_FAILURES = 1000 };

typedef struct tuner {
    const tune_options *options;
    timed_model model;
    cost_table *costs;         /* NULL: guesses */
    schedule_options settings; /* of all candidates */
    char trial[4096];          /* file of the schedule that is opened next */
    schedule best, first;      /* the best so far, and the quickest strategy */
    timed_machine runs_best;
    double first_ns; /* the strategy's median */
    int strategy, kept, tried;
    uint64_t seed, end;
    strbuf *out;
} tuner;

static qp_status check_cancelled(const tuner *t, qp_error *error)
{
    if (t->options->cancel && *t->options->cancel)
        return error_set(error, QP_CANCELLED, "stopped; nothing was saved");
    return QP_OK;
}

/* A machine that runs a schedule as a run does, with workers that help each other. */
static qp_status open_machine(tuner *t, const schedule *s, timed_machine *out, qp_error *error)
{
    *out = (timed_machine){0};
    TRY(schedule_save(s, 1, t->trial, error));
    TRY(timed_machine_open(&t->model, &t->settings, t->trial, false, out, error));
    return timed_warm_up(&t->model, out, error);
}

static qp_status predict(const schedule *s, double *ns, qp_error *error)
{
    schedule_prediction predicted = {0};
    qp_status status = schedule_predict(s, &predicted, error);
    *ns = predicted.total;
    prediction_free(&predicted);
    return status;
}

/* Pairs of runs in turn, until the two differ or there have been enough. */
static qp_status run_pairs(tuner *t, timed_machine *a, timed_machine *b, int most,
                           paired_ratio *ratios, qp_error *error)
{
    *ratios = (paired_ratio){0};
    for (int i = 0; i < most; i++) {
        timed_machine *first = i % 2 ? b : a, *second = i % 2 ? a : b;
        TRY(check_cancelled(t, error));
        TRY(timed_run(&t->model, first, error));
        TRY(timed_run(&t->model, second, error));
        paired_add(ratios, a->last_ns, b->last_ns);
        const paired_interval interval = paired_of(ratios);
        if (i + 1 >= PAIRED_LEAST && (interval.low > 1 || interval.high < 1)) break;
    }
    return QP_OK;
}

/* ---- the strategies ------------------------------------------------------------------------ */

static qp_status build(tuner *t, int strategy, int64_t group, schedule *out, qp_error *error)
{
    schedule_options options = t->settings;
    options.assignment = (schedule_assignment)strategy;
    options.group = group;
    options.costs = t->costs;
    return schedule_build(&t->model.program, &options, out, error);
}

/* Runs all in turn; *quickest by its median, which *ns gets. */
static qp_status race(tuner *t, timed_machine *machines, int *quickest, double *ns, qp_error *error)
{
    enum { ROUNDS = 15 };
    double times[STRATEGIES][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < STRATEGIES; i++) {
            TRY(check_cancelled(t, error));
            TRY(timed_run(&t->model, &machines[i], error));
            times[i][round] = machines[i].last_ns;
        }
    }
    for (int i = 0; i < STRATEGIES; i++) {
        sort_times(times[i], ROUNDS);
        const double median = times[i][ROUNDS / 2];
        strbuf_printf(t->out, "%-12s %14.1f us\n", schedule_assignment_name(i), median / 1e3);
        if (i > 0 && median >= *ns) continue;
        *quickest = i;
        *ns = median;
    }
    return QP_OK;
}

static qp_status find_first(tuner *t, qp_error *error)
{
    schedule schedules[STRATEGIES] = {0};
    timed_machine machines[STRATEGIES] = {0};
    qp_status status = QP_OK;
    for (int i = 0; status == QP_OK && i < STRATEGIES; i++) {
        status = build(t, i, 0, &schedules[i], error);
        if (status == QP_OK) status = open_machine(t, &schedules[i], &machines[i], error);
    }
    if (status == QP_OK) status = race(t, machines, &t->strategy, &t->first_ns, error);
    for (int i = 0; i < STRATEGIES; i++) {
        const bool chosen = status == QP_OK && i == t->strategy;
        if (chosen)
            t->first = schedules[i];
        else
            schedule_free(&schedules[i]);
        timed_machine_close(&machines[i]);
    }
    TRY(status);
    TRY(schedule_neighbour(&t->first, 0, &t->seed, &t->best, error));
    return open_machine(t, &t->best, &t->runs_best, error);
}

/* ---- the search ---------------------------------------------------------------------------- */

static void print_candidate(const tuner *t, const char *what, double predicted, double before,
                            const paired_ratio *ratios)
{
    const paired_interval i = paired_of(ratios);
    if (i.high >= 1 && !t->options->verbose) return;
    strbuf_printf(t->out, "%4d  %-24s predicted %.3f, measured %.3f (%.3f to %.3f) of the best%s\n",
                  t->tried, what, predicted / before, i.median, i.low, i.high,
                  i.high < 1 ? ": kept" : "");
}

/* Runs a candidate in turn with the best, and takes its place if it is quicker. Owns it. */
static qp_status try_candidate(tuner *t, schedule *candidate, const char *what, qp_error *error)
{
    enum { PAIRS = 24 };
    timed_machine machine = {0};
    paired_ratio ratios = {0};
    double predicted = 0, before = 0;
    qp_status status = predict(candidate, &predicted, error);
    if (status == QP_OK) status = predict(&t->best, &before, error);
    if (status == QP_OK) status = open_machine(t, candidate, &machine, error);
    if (status == QP_OK) status = run_pairs(t, &machine, &t->runs_best, PAIRS, &ratios, error);
    t->tried++;
    if (status == QP_OK) print_candidate(t, what, predicted, before, &ratios);
    const bool kept = status == QP_OK && paired_is_quicker(&ratios);
    if (kept) {
        timed_machine old = t->runs_best;
        t->runs_best = machine;
        machine = old;
        schedule moved = t->best;
        t->best = *candidate;
        *candidate = moved;
        t->kept++;
    }
    timed_machine_close(&machine);
    schedule_free(candidate);
    return status;
}

static bool has_time(const tuner *t)
{
    return clock_ns() < t->end;
}

/* The quickest strategy with instructions of other sizes, one of them in any case. */
static qp_status try_groups(tuner *t, qp_error *error)
{
    static const int64_t groups[] = {32, 64, 128, 256};
    for (size_t i = 0; i < sizeof groups / sizeof *groups && (i == 0 || has_time(t)); i++) {
        schedule candidate;
        char what[48];
        qp_status status = build(t, t->strategy, groups[i], &candidate, error);
        if (status != QP_OK) schedule_free(&candidate);
        TRY(status);
        snprintf(what, sizeof what, "%s, groups of %d", schedule_assignment_name(t->strategy),
                 (int)groups[i]);
        TRY(try_candidate(t, &candidate, what, error));
    }
    return QP_OK;
}

/* Neighbours of the best: those that are predicted to be quicker, and every fourth time a few moves
 * by chance, because predictions are not exact. */
static qp_status try_neighbours(tuner *t, qp_error *error)
{
    for (int failures = 0, n = 0; has_time(t) && failures < MOST_FAILURES; n++) {
        schedule candidate = {0};
        double before, ns = 0;
        const bool chance = n % 4 == 3;
        TRY(check_cancelled(t, error));
        TRY(predict(&t->best, &before, error));
        qp_status status = schedule_climb(&t->best, CLIMB, &t->seed, &candidate, &ns, error);
        if (status == QP_OK && ns >= before && chance) {
            schedule_free(&candidate);
            status = schedule_sound_neighbour(&t->best, 8, &t->seed, &candidate, error);
            ns = status == QP_OK && candidate.n_counters > 0 ? 0 : before;
        }
        if (status != QP_OK || ns >= before) {
            schedule_free(&candidate);
            failures++;
        } else {
            status =
                try_candidate(t, &candidate, ns > 0 ? "predicted quicker" : "by chance", error);
        }
        TRY(status);
    }
    return QP_OK;
}

/* The best against the quickest strategy, with new runs. */
static qp_status decide(tuner *t, qp_error *error)
{
    timed_machine first = {0};
    paired_ratio ratios = {0};
    const paired_interval none = {1, 1, 1};
    paired_interval i = none;
    qp_status status = QP_OK;
    if (t->kept > 0) {
        status = open_machine(t, &t->first, &first, error);
        if (status == QP_OK)
            status = run_pairs(t, &t->runs_best, &first, PAIRED_MOST, &ratios, error);
        i = paired_of(&ratios);
    }
    timed_machine_close(&first);
    TRY(status);
    const char *name = schedule_assignment_name(t->strategy);
    const bool better = t->kept > 0 && i.high < 1;
    strbuf_printf(t->out, "\n%d candidates, %d kept", t->tried, t->kept);
    if (t->kept > 0)
        strbuf_printf(t->out, "; in new runs the best takes %.3f (%.3f to %.3f) of %s", i.median,
                      i.low, i.high, name);
    strbuf_printf(t->out,
                  better ? "\nsaved: the best that was found, %s\n"
                         : "\nnothing outside of noise was found; saved: %s, %s\n",
                  better ? t->options->save : name, t->options->save);
    return schedule_save(better ? &t->best : &t->first, 1, t->options->save, error);
}

/* ---- the whole ----------------------------------------------------------------------------- */

static void load_costs(tuner *t)
{
    const cost_origin origin = {NULL, NULL, t->options->threads};
    cost_table *table = t->options->costs ? malloc(sizeof *table) : NULL;
    if (table && cost_load(t->options->costs, &origin, table, NULL) == QP_OK)
        t->costs = table;
    else
        free(table);
}

static qp_status fill(tuner *t, qp_error *error)
{
    const plan_options *o = &t->model.program.options;
    const bool throughput = t->options->throughput;
    int64_t tokens = throughput ? o->max_tokens : 1;
    if (tokens > o->context) tokens = o->context;
    const int64_t context = throughput ? tokens : o->context;
    t->settings = schedule_run_options(&t->model.program);
    t->settings.workers = t->options->threads;
    t->settings.setting = throughput ? SCHEDULE_THROUGHPUT : SCHEDULE_LATENCY;
    t->settings.tokens = tokens;
    t->settings.context = context;
    strbuf_printf(t->out, "%s, %d workers, %lld token%s at %lld positions, costs %s\n",
                  schedule_setting_name(t->settings.setting), t->options->threads,
                  (long long)tokens, tokens == 1 ? "" : "s", (long long)context,
                  t->costs ? "measured" : "guessed");
    return timed_fill(&t->model, tokens, context, error);
}

static qp_status tune(tuner *t, qp_error *error)
{
    const tune_options *o = t->options;
    const timed_options options = {.model = o->model,
                                   .threads = o->threads,
                                   .context = o->context,
                                   .chunk = o->chunk,
                                   .as_run = true,
                                   .progress = o->progress,
                                   .progress_context = o->progress_context};
    TRY(timed_open(&options, &t->model, error));
    t->end = clock_ns() + (uint64_t)(o->seconds * 1e9);
    TRY(fill(t, error));
    TRY(find_first(t, error));
    TRY(try_groups(t, error));
    TRY(try_neighbours(t, error));
    return decide(t, error);
}

qp_status schedule_tune(const tune_options *o, strbuf *out, qp_error *error)
{
    tuner *t = calloc(1, sizeof *t);
    if (!t) return error_no_memory(error, "the search", sizeof *t);
    *t = (tuner){.options = o, .seed = o->seed, .out = out};
    snprintf(t->trial, sizeof t->trial, "%.4000s.trial", o->save);
    load_costs(t);
    qp_status status = tune(t, error);
    timed_machine_close(&t->runs_best);
    schedule_free(&t->best);
    schedule_free(&t->first);
    timed_close(&t->model);
    unlink(t->trial);
    free(t->costs);
    free(t);
    return status;
}
