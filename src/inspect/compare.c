/* Compares the five strategies: see compare.h. */
#include "inspect/compare.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/paired.h"
#include "inspect/read_speed.h"
#include "inspect/timed.h"
#include "schedule/build.h"
#include "schedule/cost.h"
#include "schedule/predict.h"
#include "vm/signal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRATEGIES = SCHEDULE_POOL + 1, LOADED = STRATEGIES, LEAST_ROUNDS = 3, MOST_ROUNDS = 256 };
static const uint64_t LONG_ENOUGH_NS = 10000000000, LONG_ENOUGH_CUDA_NS = 1000000000;

/* One schedule's figures, predicted and measured, in ns except for balance. */
typedef struct compare_figures {
    double total, balance,
        waiting; /* waiting: of all workers, between the instructions of their queues */
} compare_figures;

typedef struct contestant {
    timed_machine machine;
    cost_rates rates; /* of plain reads beside the quickest pass */
    schedule priced;  /* the same schedule, with costs at these rates */
    schedule_prediction prediction;
    compare_figures predicted, measured;
    double median;
    double undisturbed; /* with each instruction's least time */
    double rounds[MOST_ROUNDS];
} contestant;

typedef struct comparison {
    const compare_options *options;
    timed_model model;
    cost_table *costs;       /* NULL: costs are guesses */
    char why[QP_ERROR_SIZE]; /* there are none */
    int threads;
    read_speed speed;
    double signal_ns; /* measured before the rounds; 0: not measured */
    int n_rounds, n;  /* of rounds, of contestants */
    contestant of[STRATEGIES + 1];
    schedule_options loaded; /* of the saved schedule */
} comparison;

static compare_figures figures_of(const double *busy, int workers, double total)
{
    double most = 0, sum = 0;
    for (int w = 0; w < workers; w++) {
        if (busy[w] > most) most = busy[w];
        sum += busy[w];
    }
    return (compare_figures){.total = total,
                             .balance = sum > 0 ? most * workers / sum : 1,
                             .waiting = total * workers - sum};
}

/* Time that every worker spent in instructions, in the quickest pass. */
static qp_status measure(contestant *c, qp_error *error)
{
    const schedule *s = c->machine.schedule;
    const int workers = s->options.workers;
    double *busy = calloc((size_t)workers, sizeof *busy);
    if (!busy) return error_no_memory(error, "the comparison", (size_t)workers * sizeof *busy);
    for (int w = 0; w < workers; w++) {
        const instruction_timing *t = c->machine.best + (size_t)w * (size_t)s->longest;
        for (int i = 0; i < s->length[w]; i++)
            busy[w] += (double)(t[i].end - t[i].work);
    }
    c->measured = figures_of(busy, workers, c->machine.best_ns);
    free(busy);
    schedule_prediction replay;
    qp_status status = schedule_replay(s, c->machine.least, &replay, error);
    c->undisturbed = replay.total;
    prediction_free(&replay);
    return status;
}

static qp_status open_contestant(comparison *x, schedule_setting setting, int which, int64_t tokens,
                                 int64_t context, qp_error *error)
{
    const char *file = which == LOADED ? x->options->load : NULL;
    const schedule_options options = {.setting = setting,
                                      .assignment =
                                          file ? x->loaded.assignment : (schedule_assignment)which,
                                      .memory_fraction = x->options->memory_fraction,
                                      .tokens = tokens,
                                      .context = context,
                                      .last_step = x->model.program.logits_end,
                                      .costs = x->costs};
    contestant *c = &x->of[which];
    TRY(timed_machine_open(&x->model, &options, file, false, &c->machine, error));
    return timed_warm_up(&x->model, &c->machine, error);
}

/* What a contestant runs, with the cost of a signal and the rate of memory beside the passes. A
 * saved schedule keeps its costs, and a GPU's memory is its own. */
static const schedule *priced_of(const comparison *x, int which)
{
    const contestant *c = &x->of[which];
    return c->priced.n_nodes > 0 ? &c->priced : c->machine.schedule;
}

static qp_status predict(comparison *x, int which, qp_error *error)
{
    contestant *c = &x->of[which];
    const schedule *s = c->machine.schedule;
    if (which != LOADED && x->costs && c->rates.all > 0) {
        schedule_options options = s->options;
        x->costs->now = c->rates;
        options.costs = x->costs;
        options.profile.signal_ns = x->signal_ns;
        TRY(machine_predict(&c->machine.of, &options, &c->priced, error));
    }
    TRY(schedule_predict(priced_of(x, which), &c->prediction, error));
    c->predicted = figures_of(c->prediction.busy, s->options.workers, c->prediction.total);
    return QP_OK;
}

static bool is_over(const comparison *x, uint64_t begin)
{
    int64_t wanted = x->options->rounds;
    if (x->n_rounds == MOST_ROUNDS) return true; /* as many as the array holds */
    if (wanted > 0) return x->n_rounds >= wanted;
    uint64_t enough = x->options->device ? LONG_ENOUGH_CUDA_NS : LONG_ENOUGH_NS;
    return x->n_rounds >= LEAST_ROUNDS && clock_ns() - begin > enough;
}

/* A run of a contestant, and plain reads after it; *before: those before it. */
static qp_status run_timed(comparison *x, contestant *c, cost_rates *before, qp_error *error)
{
    TRY(timed_run(&x->model, &c->machine, error));
    const cost_rates after = read_speed_now(&x->speed, true, true);
    if (c->machine.last_ns == c->machine.best_ns) c->rates = read_speed_between(*before, after);
    *before = after;
    return QP_OK;
}

static qp_status take_rounds(comparison *x, qp_error *error)
{
    const uint64_t begin = clock_ns();
    cost_rates before = read_speed_now(&x->speed, true, true);
    for (x->n_rounds = 0; !is_over(x, begin); x->n_rounds++) {
        for (int i = 0; i < x->n; i++) {
            if (x->options->cancel && *x->options->cancel)
                return error_set(error, QP_CANCELLED, "stopped");
            TRY(run_timed(x, &x->of[i], &before, error));
            x->of[i].rounds[x->n_rounds] = x->of[i].machine.last_ns;
        }
    }
    for (int i = 0; i < x->n; i++) {
        contestant *c = &x->of[i];
        TRY(predict(x, i, error));
        TRY(measure(c, error));
        sort_times(c->rounds, x->n_rounds);
        c->median = c->rounds[x->n_rounds / 2];
    }
    return QP_OK;
}

/* ---- print --------------------------------------------------------------------------------- */

static bool apart(double a, double b)
{
    return a > 2 * b || b > 2 * a;
}

/* Whether even the quickest passes took much longer than the sum of their instructions. */
static bool was_busy(const comparison *x)
{
    int busy = 0;
    if (x->options->device) return false; /* blocks wait for one another, not for other programs */
    for (int i = 0; i < x->n; i++)
        busy += x->of[i].measured.total > 1.1 * x->of[i].undisturbed;
    return busy > x->n / 2;
}

/* What may have changed since the costs were measured. A host moves the processors of a virtual
 * machine, which changes what they share: a cache, or the memory's bandwidth. */
static void print_conditions(const comparison *x, strbuf *out)
{
    const double then = x->costs ? x->costs->rates.all : 0;
    double least = INFINITY, most = 0;
    for (int i = 0; i < x->n; i++) {
        least = fmin(least, x->of[i].rates.all);
        most = fmax(most, x->of[i].rates.all);
    }
    if (then <= 0 || most <= 0) return;
    strbuf_printf(out,
                  "memory was read at %.1f to %.1f GB/s beside these passes, for which the times "
                  "are predicted, and at %.1f when costs were measured\n",
                  least / 1e9, most / 1e9, then / 1e9);
    if (!apart(x->signal_ns, x->costs->limits.signal_ns)) return;
    strbuf_printf(out,
                  "a signal takes %.0f ns from a processor to another, and took %.0f: they share "
                  "other caches now, so measure the costs again\n",
                  x->signal_ns, x->costs->limits.signal_ns);
}

static void print_table(const comparison *x, strbuf *out)
{
    const schedule *s = x->of[0].machine.schedule;
    const int workers = s->options.workers;
    strbuf_printf(out,
                  "%s, %d worker%s, %lld token%s at %lld positions, %d rounds\n"
                  "%-8s %12s %12s %12s %8s %14s %12s %14s\n",
                  schedule_setting_name(s->options.setting), workers, workers == 1 ? "" : "s",
                  (long long)s->options.tokens, s->options.tokens == 1 ? "" : "s",
                  (long long)s->options.context, x->n_rounds, "assign", "predicted us",
                  "measured us", "undisturbed", "ratio", "balance", "critical us", "waiting");
    for (int i = 0; i < x->n; i++) {
        const contestant *c = &x->of[i];
        const compare_figures *p = &c->predicted, *m = &c->measured;
        strbuf_printf(out, "%-8s %12.1f %12.1f %12.1f %8.3f %6.3f  %6.3f %12.1f %5.1f%%  %5.1f%%\n",
                      i == LOADED ? "loaded" : schedule_assignment_name(i), p->total / 1e3,
                      m->total / 1e3, c->undisturbed / 1e3, m->total / p->total, p->balance,
                      m->balance, c->prediction.critical_path / 1e3,
                      100 * p->waiting / (p->total * workers),
                      100 * m->waiting / (m->total * workers));
    }
    if (was_busy(x))
        strbuf_puts(out, "other programs had the processors or the memory, too: ratios mean little "
                         "until this is repeated without them\n");
    print_conditions(x, out);
    strbuf_putc(out, '\n');
}

/* Whose predictions are wrong: the time in each operator's instructions, of a worker on average,
 * over all schedules. */
static void print_operators(const comparison *x, strbuf *out)
{
    double predicted[OP_COUNT] = {0}, measured[OP_COUNT] = {0};
    const int workers = x->of[0].machine.schedule->options.workers;
    for (int i = 0; i < x->n; i++) {
        const contestant *c = &x->of[i];
        const schedule *s = priced_of(x, i);
        for (int w = 0; w < workers; w++)
            for (int n = 0; n < s->length[w]; n++) {
                const size_t at = (size_t)w * (size_t)s->longest + (size_t)n;
                const int op = schedule_queue(s, w)[n].opcode;
                if (op == INSTRUCTION_NOOP) continue;
                predicted[op] += c->prediction.end[at] - c->prediction.begin[at];
            }
        s = c->machine.schedule;
        for (int w = 0; w < workers; w++)
            for (int n = 0; n < s->length[w]; n++) {
                const instruction_timing *t =
                    &c->machine.best[(size_t)w * (size_t)s->longest + (size_t)n];
                const int op = schedule_queue(s, w)[n].opcode;
                if (op != INSTRUCTION_NOOP) measured[op] += (double)(t->end - t->work);
            }
    }
    const double passes = 1e3 * workers * x->n;
    strbuf_printf(out, "%-20s %12s %12s %8s\n", "operator", "predicted us", "measured us", "ratio");
    for (int op = 0; op < OP_COUNT; op++)
        if (predicted[op] > 0)
            strbuf_printf(out, "%-20s %12.1f %12.1f %8.3f\n", op_get((op_code)op)->name,
                          predicted[op] / passes, measured[op] / passes,
                          measured[op] / predicted[op]);
    strbuf_putc(out, '\n');
}

static void add_figures(cJSON *item, const char *name, const compare_figures *f)
{
    cJSON *object = cJSON_AddObjectToObject(item, name);
    cJSON_AddNumberToObject(object, "ns", f->total);
    cJSON_AddNumberToObject(object, "balance", f->balance);
    cJSON_AddNumberToObject(object, "waiting_ns", f->waiting);
}

static void add_json(const comparison *x, cJSON *settings)
{
    const schedule *s = x->of[0].machine.schedule;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(settings, object);
    cJSON_AddStringToObject(object, "setting", schedule_setting_name(s->options.setting));
    cJSON_AddNumberToObject(object, "workers", s->options.workers);
    cJSON_AddNumberToObject(object, "tokens", (double)s->options.tokens);
    cJSON_AddNumberToObject(object, "context", (double)s->options.context);
    cJSON_AddNumberToObject(object, "rounds", x->n_rounds);
    cJSON_AddBoolToObject(object, "busy", was_busy(x));
    cJSON *strategies = cJSON_AddArrayToObject(object, "strategies");
    for (int i = 0; i < x->n; i++) {
        const contestant *c = &x->of[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddItemToArray(strategies, item);
        const schedule_assignment how = c->machine.schedule->options.assignment;
        cJSON_AddStringToObject(item, "assign", schedule_assignment_name((int)how));
        if (i == LOADED) cJSON_AddStringToObject(item, "file", x->options->load);
        add_figures(item, "predicted", &c->predicted);
        add_figures(item, "measured", &c->measured);
        cJSON_AddNumberToObject(item, "median_ns", c->median);
        cJSON_AddNumberToObject(item, "undisturbed_ns", c->undisturbed);
        cJSON_AddNumberToObject(item, "critical_path_ns", c->prediction.critical_path);
        if (c->rates.all > 0) cJSON_AddNumberToObject(item, "plain_read", c->rates.all);
    }
}

/* ---- settings ------------------------------------------------------------------------------ */

static void close_contestants(comparison *x)
{
    for (int i = 0; i < x->n; i++) {
        prediction_free(&x->of[i].prediction);
        schedule_free(&x->of[i].priced);
        timed_machine_close(&x->of[i].machine);
        x->of[i] = (contestant){0};
    }
}

static qp_status run_setting(comparison *x, schedule_setting setting, strbuf *out, cJSON *json,
                             qp_error *error)
{
    const plan_options *o = &x->model.program.options;
    int64_t tokens = setting == SCHEDULE_LATENCY ? 1 : o->max_tokens;
    if (tokens > o->context) tokens = o->context;
    int64_t context = setting == SCHEDULE_LATENCY ? o->context : tokens;
    if (x->options->load) { /* what its costs were predicted for */
        tokens = x->loaded.tokens;
        context = x->loaded.context;
    }
    TRY(timed_fill(&x->model, tokens, context, error));
    for (int i = 0; i < x->n; i++)
        TRY(open_contestant(x, setting, i, tokens, context, error));
    TRY(take_rounds(x, error));
    if (json)
        add_json(x, json);
    else
        print_table(x, out);
    if (!json && x->options->by_operator) print_operators(x, out);
    return QP_OK;
}

static qp_status compare_setting(comparison *x, schedule_setting setting, strbuf *out, cJSON *json,
                                 qp_error *error)
{
    const compare_options *o = x->options;
    const timed_options options = {
        .model = o->model,
        .device = o->device,
        .threads = x->threads,
        .context = o->context,
        .chunk = o->chunk,
        .fuse = o->load ? o->fuse : !o->device && setting == SCHEDULE_LATENCY && timed_fuses(),
        .as_run = o->load != NULL,
        .kv_partitions = o->kv_partitions,
        .progress = o->progress,
        .progress_context = o->progress_context};
    qp_status status = timed_open(&options, &x->model, error);
    if (status == QP_OK && !o->device)
        status = read_speed_open(&x->speed, x->model.pool, x->model.alone, error);
    if (status == QP_OK && !o->device)
        status = threads_measure_signal(x->model.pool, &x->signal_ns, error);
    if (status == QP_OK) status = run_setting(x, setting, out, json, error);
    read_speed_close(&x->speed);
    close_contestants(x);
    timed_close(&x->model);
    return status;
}

static void load_costs(comparison *x)
{
    qp_error why = {0};
    const cost_origin origin = {x->options->device, x->options->machine, x->threads};
    cost_table *table = x->options->costs ? malloc(sizeof *table) : NULL;
    if (table && cost_load(x->options->costs, &origin, table, &why) == QP_OK) {
        x->costs = table;
        return;
    }
    snprintf(x->why, sizeof x->why, "%s", why.message);
    free(table);
}

/* Workers and setting are those of the file. */
static qp_status take_loaded(comparison *x, bool *latency, bool *throughput, qp_error *error)
{
    const compare_options *o = x->options;
    if (o->device)
        return error_set(error, QP_INVALID,
                         "a saved schedule is compared on CPU threads: leave out --device cuda");
    TRY(schedule_peek(o->load, &x->loaded, error));
    x->n = STRATEGIES + 1;
    x->threads = x->loaded.workers;
    *latency = x->loaded.setting == SCHEDULE_LATENCY;
    *throughput = !*latency;
    return QP_OK;
}

static qp_status compare(comparison *x, strbuf *out, cJSON *json, qp_error *error)
{
    const compare_options *o = x->options;
    if (o->device && o->throughput)
        return error_set(
            error, QP_INVALID,
            "the megakernel has passes of one token: a GPU compares --setting latency");
    bool latency = o->latency || !o->throughput, throughput = o->throughput || !o->latency;
    if (o->load) TRY(take_loaded(x, &latency, &throughput, error));
    load_costs(x);
    if (latency) TRY(compare_setting(x, SCHEDULE_LATENCY, out, json, error));
    if (!o->device && throughput) TRY(compare_setting(x, SCHEDULE_THROUGHPUT, out, json, error));
    if (json) return QP_OK;
    strbuf_puts(out, "measured: the quickest of the rounds; undisturbed: with the quickest of each "
                     "instruction;\nratio: measured over predicted; balance and waiting: "
                     "predicted, then measured\n");
    if (o->load)
        strbuf_printf(out, "loaded: %s; predicted from the costs that it was saved with\n",
                      o->load);
    if (x->costs)
        strbuf_printf(out, "predicted from costs measured on this machine, in %s\n", o->costs);
    else
        strbuf_printf(out,
                      "predicted from guessed costs, since none were measured (%s): see quipu "
                      "schedule --measure\n",
                      x->why);
    return QP_OK;
}

qp_status compare_find_workers(const char *load, int *workers, qp_error *error)
{
    schedule_options of;
    TRY(schedule_peek(load, &of, error));
    *workers = of.workers;
    return QP_OK;
}

qp_status schedule_compare(const compare_options *options, strbuf *out, qp_error *error)
{
    comparison *x = calloc(1, sizeof *x);
    if (!x) return error_no_memory(error, "the comparison", sizeof *x);
    x->options = options;
    x->threads = options->threads;
    x->n = STRATEGIES;
    cJSON *root = options->json ? cJSON_CreateObject() : NULL;
    cJSON *settings = root ? cJSON_AddArrayToObject(root, "settings") : NULL;
    qp_status status = compare(x, out, settings, error);
    if (status == QP_OK && root) {
        cJSON_AddBoolToObject(root, "measured_costs", x->costs != NULL);
        char *text = cJSON_PrintUnformatted(root);
        if (text) strbuf_printf(out, "%s\n", text);
        if (!text || out->failed) status = error_no_memory(error, "the comparison", out->length);
        free(text);
    }
    cJSON_Delete(root);
    free(x->costs);
    free(x);
    return status;
}
