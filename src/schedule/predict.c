/* The queues run on paper: see predict.h. */
#include "schedule/predict.h"

#include <stdlib.h>

typedef struct counter_state {
    uint32_t signals;
    double complete; /* when the last signal so far came */
    double path;     /* the longest path of dependencies to it */
} counter_state;

typedef struct runner {
    const schedule *s;
    schedule_prediction *out;
    counter_state *counters;
    int32_t *place;  /* [workers] */
    double *free_at; /* [workers] */
} runner;

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Whether the waits of this pass are over; *ready and *path get when. */
static bool is_ready(const runner *r, const instruction *in, double *ready, double *path)
{
    *ready = *path = 0;
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        const counter_state *counter = &r->counters[in->waits[w].counter];
        if (in->waits[w].counter == 0 || (in->flags >> w & 1)) continue;
        if (counter->signals < in->waits[w].needed) return false;
        *ready = later(*ready, counter->complete + r->s->options.profile.signal_ns);
        *path = later(*path, counter->path + r->s->options.profile.signal_ns);
    }
    return true;
}

/* Runs a worker as far as it can go; whether it moved. */
static bool advance(runner *r, int worker)
{
    const instruction *queue = schedule_queue(r->s, worker);
    const int32_t from = r->place[worker];
    double ready, path;
    for (; r->place[worker] < r->s->length[worker]; r->place[worker]++) {
        const instruction *in = &queue[r->place[worker]];
        if (!is_ready(r, in, &ready, &path)) break;
        double begin = later(ready, r->free_at[worker]), end = begin + in->cost_ns;
        path += in->cost_ns;
        r->out->begin[(size_t)worker * (size_t)r->s->longest + (size_t)r->place[worker]] = begin;
        r->out->busy[worker] += in->cost_ns;
        r->out->total = later(r->out->total, end);
        r->out->critical_path = later(r->out->critical_path, path);
        r->free_at[worker] = end;
        counter_state *signal = &r->counters[in->signal];
        signal->signals++;
        signal->complete = later(signal->complete, end);
        signal->path = later(signal->path, path);
    }
    return r->place[worker] > from;
}

qp_status schedule_predict(const schedule *s, schedule_prediction *out, qp_error *error)
{
    const size_t workers = (size_t)s->options.workers;
    *out = (schedule_prediction){.begin = calloc(workers * (size_t)s->longest, sizeof *out->begin),
                                 .busy = calloc(workers, sizeof *out->busy)};
    runner r = {.s = s,
                .out = out,
                .counters = calloc((size_t)s->n_counters, sizeof *r.counters),
                .place = calloc(workers, sizeof *r.place),
                .free_at = calloc(workers, sizeof *r.free_at)};
    bool enough = out->begin && out->busy && r.counters && r.place && r.free_at;
    for (bool moved = enough; moved;) {
        moved = false;
        for (int worker = 0; worker < s->options.workers; worker++)
            moved = advance(&r, worker) || moved;
    }
    free(r.counters);
    free(r.place);
    free(r.free_at);
    return enough ? QP_OK : error_no_memory(error, "the prediction", workers);
}

void prediction_free(schedule_prediction *p)
{
    free(p->begin);
    free(p->busy);
    *p = (schedule_prediction){0};
}
