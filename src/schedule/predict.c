/* Simulates the queues: see predict.h.
 *
 * There are two methods. If every instruction takes cost_ns whatever other workers do, each
 * worker's queue is followed as far as it can go. If instructions are faster while other workers
 * wait, because workers share the memory's bandwidth, time advances from one start or end of an
 * instruction to the next.
 */
#include "schedule/predict.h"

#include <math.h>
#include <stdlib.h>

typedef struct counter_state {
    uint32_t signals;
    double complete; /* when the last signal so far came */
    double path;     /* the longest path of dependencies to it */
} counter_state;

typedef struct worker_state {
    enum { BLOCKED, READY, WORKING, DONE } phase;
    int32_t place;  /* in its queue */
    double free_at; /* the end of its last instruction */
    double begin;   /* of the next, when READY or WORKING */
    double path;    /* to its beginning */
    double left;    /* ns of work, when WORKING, as if all worked */
    double alone;   /* of its node */
} worker_state;

typedef struct runner {
    const schedule *s;
    const double *ns; /* [workers][longest]: durations; NULL: the costs */
    schedule_prediction *out;
    counter_state *counters;
    worker_state *workers;
} runner;

static double later(double a, double b)
{
    return a > b ? a : b;
}

static const instruction *next_of(const runner *r, int worker)
{
    return schedule_queue(r->s, worker) + r->workers[worker].place;
}

static double signal_of(const schedule *s, const instruction *in)
{
    double own = in->opcode == INSTRUCTION_NOOP ? 0 : (double)s->costs[in->node].signal_ns;
    return own > 0 ? own : s->options.profile.signal_ns;
}

/* Whether the instruction's waits for this pass are over, and when: *ready and *path. */
static bool is_ready(const runner *r, const instruction *in, double *ready, double *path)
{
    const double signal = signal_of(r->s, in);
    *ready = *path = 0;
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        const counter_state *counter = &r->counters[in->waits[w].counter];
        if (in->waits[w].counter == 0 || (in->flags >> w & 1)) continue;
        if (counter->signals < in->waits[w].needed) return false;
        *ready = later(*ready, counter->complete + signal);
        *path = later(*path, counter->path + signal);
    }
    return true;
}

/* Ends a worker's instruction: its signal, and the worker's next place. */
static void finish(runner *r, int worker, double begin, double end, double path)
{
    worker_state *w = &r->workers[worker];
    const instruction *in = next_of(r, worker);
    size_t at = (size_t)worker * (size_t)r->s->longest + (size_t)w->place;
    r->out->begin[at] = begin;
    r->out->end[at] = end;
    r->out->busy[worker] += end - begin;
    r->out->total = later(r->out->total, end);
    r->out->critical_path = later(r->out->critical_path, path);
    w->free_at = end;
    counter_state *signal = &r->counters[in->signal];
    signal->signals++;
    signal->complete = later(signal->complete, end);
    signal->path = later(signal->path, path);
    w->place++;
}

/* ---- nothing shared ------------------------------------------------------------------------ */

/* Runs a worker as far as it can go. True if it has run an instruction. */
static bool advance(runner *r, int worker)
{
    worker_state *w = &r->workers[worker];
    const int32_t from = w->place;
    double ready, path;
    while (w->place < r->s->length[worker]) {
        const instruction *in = next_of(r, worker);
        if (!is_ready(r, in, &ready, &path)) break;
        double begin = later(ready, w->free_at), ns = in->cost_ns;
        if (r->ns) ns = r->ns[(size_t)worker * (size_t)r->s->longest + (size_t)w->place];
        finish(r, worker, begin, begin + ns, path + ns);
    }
    return w->place > from;
}

static void run_apart(runner *r)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int worker = 0; worker < r->s->options.workers; worker++)
            moved = advance(r, worker) || moved;
    }
}

/* ---- bandwidth shared ---------------------------------------------------------------------- */

static double alone_of(const schedule *s, const instruction *in)
{
    if (in->opcode == INSTRUCTION_NOOP) return 1;
    double alone = (double)s->costs[in->node].alone;
    return alone > 0 ? alone : 1;
}

/* The time of an instruction while `working` workers work, divided by cost_ns: it gets the
 * bandwidth that the others leave, but no more than one worker can use. */
static double slowness(const runner *r, double alone, int working)
{
    return later(alone, (double)working / r->s->options.workers);
}

/* Unblocks a worker whose waits are over. */
static void look(runner *r, int worker)
{
    worker_state *w = &r->workers[worker];
    double ready, path;
    if (w->phase != BLOCKED) return;
    if (w->place == r->s->length[worker]) {
        w->phase = DONE;
        return;
    }
    const instruction *in = next_of(r, worker);
    if (!is_ready(r, in, &ready, &path)) return;
    w->begin = later(ready, w->free_at);
    w->alone = alone_of(r->s, in);
    w->path = path + in->cost_ns * w->alone;
    w->left = in->cost_ns;
    w->phase = READY;
}

/* The time of the next start or end; infinite if there is none. */
static double next_event(const runner *r, double now, int working)
{
    double next = INFINITY;
    for (int i = 0; i < r->s->options.workers; i++) {
        const worker_state *w = &r->workers[i];
        double at = INFINITY;
        if (w->phase == READY) at = w->begin;
        if (w->phase == WORKING) at = now + w->left * slowness(r, w->alone, working);
        if (at < next) next = at;
    }
    return next;
}

/* Advances all working instructions to `then`, and ends those that are complete. */
static void pass_time(runner *r, double now, double then, int *working)
{
    const double rounding = 1e-3 + 1e-14 * then; /* ns; a double's own grows with the time */
    const int before = *working;
    for (int i = 0; i < r->s->options.workers; i++) {
        worker_state *w = &r->workers[i];
        if (w->phase != WORKING) continue;
        w->left -= (then - now) / slowness(r, w->alone, before);
        if (w->left > rounding) continue;
        finish(r, i, w->begin, then, w->path);
        w->phase = BLOCKED;
        --*working;
    }
    for (int i = 0; i < r->s->options.workers; i++) {
        worker_state *w = &r->workers[i];
        look(r, i);
        if (w->phase != READY || w->begin > then + rounding) continue;
        w->begin = later(w->begin, then);
        w->phase = WORKING;
        ++*working;
    }
}

static void run_together(runner *r)
{
    int working = 0;
    double now = 0;
    for (double then = 0; then < INFINITY; then = next_event(r, now, working)) {
        pass_time(r, now, then, &working);
        now = then;
    }
}

/* ---- both ---------------------------------------------------------------------------------- */

static bool any_shared(const schedule *s)
{
    for (int i = 0; i < s->n_nodes; i++) {
        if (s->costs[i].alone > 0 && s->costs[i].alone < 1) return true;
    }
    return false;
}

static qp_status run(const schedule *s, const double *ns, schedule_prediction *out, qp_error *error)
{
    const size_t workers = (size_t)s->options.workers, places = workers * (size_t)s->longest;
    *out = (schedule_prediction){.begin = calloc(places, sizeof *out->begin),
                                 .end = calloc(places, sizeof *out->end),
                                 .busy = calloc(workers, sizeof *out->busy)};
    runner r = {.s = s,
                .ns = ns,
                .out = out,
                .counters = calloc((size_t)s->n_counters, sizeof *r.counters),
                .workers = calloc(workers, sizeof *r.workers)};
    bool enough = out->begin && out->end && out->busy && r.counters && r.workers;
    if (enough && !ns && any_shared(s))
        run_together(&r);
    else if (enough)
        run_apart(&r);
    free(r.counters);
    free(r.workers);
    return enough ? QP_OK : error_no_memory(error, "the prediction", places * sizeof(double));
}

qp_status schedule_predict(const schedule *s, schedule_prediction *out, qp_error *error)
{
    return run(s, NULL, out, error);
}

qp_status schedule_replay(const schedule *s, const double *ns, schedule_prediction *out,
                          qp_error *error)
{
    return run(s, ns, out, error);
}

void prediction_free(schedule_prediction *p)
{
    free(p->begin);
    free(p->end);
    free(p->busy);
    *p = (schedule_prediction){0};
}

double prediction_balance(const schedule *s, const schedule_prediction *p)
{
    double most = 0, sum = 0;
    for (int w = 0; w < s->options.workers; w++) {
        most = later(most, p->busy[w]);
        sum += p->busy[w];
    }
    return sum > 0 ? most * s->options.workers / sum : 1;
}
