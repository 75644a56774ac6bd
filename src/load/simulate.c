#include "load/simulate.h"

#include "load/fleet_server.h"

#include <math.h>
#include <stdlib.h>

/* A copy of a row of the workload. */
typedef struct arrival {
    double time;
    uint32_t row, copy;
} arrival;

typedef struct simulation {
    const workload *w;
    fleet fleet;
    pass_costs costs;
    arrival *arrivals; /* [n], by time */
    size_t n;
    fleet_server *servers; /* [n_servers] */
    uint32_t *heap;        /* [n_servers] of them by the end of their passes, the soonest first */
    uint32_t *place;       /* [n_servers] of each in the heap */
    size_t n_servers;
    block_map sent; /* blocks to the servers that they were sent to last */
} simulation;

/* ---- Arrivals -------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (x->copy != y->copy) return x->copy < y->copy ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Each copy begins the trace at another point and goes on from its start after its end. */
static qp_status list_arrivals(simulation *s, qp_error *error)
{
    const load_options *o = s->w->options;
    const double golden = 0.6180339887498949;
    size_t rows = 0;
    double span = o->seconds, last = 0;
    for (; rows < workload_count(s->w); rows++) {
        const double time = workload_arrival(s->w, rows, last);
        if (span > 0 && time > span) break;
        last = time;
    }
    if (!(span > 0)) span = last + last / (double)rows;
    s->arrivals = calloc(rows * (size_t)o->copies, sizeof *s->arrivals);
    if (!s->arrivals) return error_no_memory(error, "the requests", rows * (size_t)o->copies);
    last = 0;
    for (size_t i = 0; i < rows; i++) {
        last = workload_arrival(s->w, i, last);
        for (uint32_t copy = 0; copy < (uint32_t)o->copies; copy++) {
            double time = last + span * fmod(copy * golden, 1);
            if (time >= span && span > 0) time -= span;
            s->arrivals[s->n++] = (arrival){time, (uint32_t)i, copy};
        }
    }
    qsort(s->arrivals, s->n, sizeof *s->arrivals, by_time);
    return QP_OK;
}

static fleet_request request_of(void *context, size_t number)
{
    const simulation *s = context;
    const arrival *a = s->arrivals + number;
    fleet_request r = {.copy = a->copy + 1};
    workload_lengths(s->w, a->row, &r.input, &r.output);
    r.blocks = workload_blocks(s->w, a->row, &r.n_blocks);
    return r;
}

/* ---- The router: the rules of vllm-router and sglang-router, by their names ------------------ */

enum { BALANCE_MOST = 64 }; /* requests; this, 1.5 and 30% below are their defaults */

static size_t least_loaded(const simulation *s, size_t number)
{
    size_t best = number % s->n_servers; /* of equals another one each time */
    for (size_t i = 0; i < s->n_servers; i++)
        if (s->servers[i].load < s->servers[best].load) best = i;
    return best;
}

static bool is_balanced(const simulation *s)
{
    size_t least = SIZE_MAX, most = 0;
    for (size_t i = 0; i < s->n_servers; i++) {
        if (s->servers[i].load < least) least = s->servers[i].load;
        if (s->servers[i].load > most) most = s->servers[i].load;
    }
    return most - least <= BALANCE_MOST || (double)most <= 1.5 * (double)least;
}

/* The server that the longest beginning of the prompt was sent to last. */
static qp_status route_by_cache(simulation *s, size_t number, size_t *out, qp_error *error)
{
    const fleet_request r = request_of(s, number);
    const uint32_t *found = NULL;
    size_t n = is_balanced(s) ? r.n_blocks : 0;
    while (10 * n > 3 * r.n_blocks && !found)
        found = block_map_find(&s->sent, fleet_block_key(&r, --n));
    *out = found ? *found : least_loaded(s, number);
    for (size_t i = 0; i < r.n_blocks; i++) {
        const uint64_t key = fleet_block_key(&r, i);
        uint32_t *value = block_map_find(&s->sent, key);
        if (value)
            *value = (uint32_t)*out;
        else
            TRY(block_map_add(&s->sent, key, (uint32_t)*out, error));
    }
    return QP_OK;
}

static qp_status route(simulation *s, size_t number, size_t *out, qp_error *error)
{
    const uint64_t bits = prompt_mix(s->w->options->seed, number);
    const size_t a = (bits >> 32) % s->n_servers, b = (uint32_t)bits % s->n_servers;
    switch (s->w->options->router) {
    case LOAD_ROUND_ROBIN:
        *out = number % s->n_servers;
        break;
    case LOAD_POWER_OF_TWO:
        *out = s->servers[b].load < s->servers[a].load ? b : a;
        break;
    case LOAD_CACHE_AWARE:
        return route_by_cache(s, number, out, error);
    }
    return QP_OK;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static void set_place(simulation *s, size_t at, uint32_t server)
{
    s->heap[at] = server;
    s->place[server] = (uint32_t)at;
}

/* The server's end has changed. */
static void move_in_heap(simulation *s, uint32_t server)
{
    const double end = s->servers[server].end;
    size_t at = s->place[server];
    for (; at && s->servers[s->heap[(at - 1) / 2]].end > end; at = (at - 1) / 2)
        set_place(s, at, s->heap[(at - 1) / 2]);
    for (size_t child; (child = 2 * at + 1) < s->n_servers; at = child) {
        if (child + 1 < s->n_servers &&
            s->servers[s->heap[child + 1]].end < s->servers[s->heap[child]].end)
            child++;
        if (s->servers[s->heap[child]].end >= end) break;
        set_place(s, at, s->heap[child]);
    }
    set_place(s, at, server);
}

/* All that happens before `time`. */
static qp_status run_until(simulation *s, double time, qp_error *error)
{
    const volatile int *cancel = s->w->options->cancel;
    while (s->servers[s->heap[0]].end < time) {
        const uint32_t first = s->heap[0];
        if (cancel && *cancel) return error_set(error, QP_CANCELLED, "interrupted");
        TRY(fleet_server_step(s->servers + first, &s->fleet, error));
        move_in_heap(s, first);
    }
    return QP_OK;
}

static qp_status run(simulation *s, qp_error *error)
{
    for (size_t i = 0, chosen = 0; i < s->n; i++) {
        const fleet_request r = request_of(s, i);
        s->fleet.records[i] = (load_record){.begun = s->arrivals[i].time,
                                            .input_tokens = (uint32_t)r.input,
                                            .output_tokens = (uint32_t)r.output};
        TRY(run_until(s, s->arrivals[i].time, error));
        TRY(route(s, i, &chosen, error));
        TRY(fleet_server_take(s->servers + chosen, &s->fleet, i, s->arrivals[i].time, error));
        move_in_heap(s, (uint32_t)chosen);
    }
    return run_until(s, INFINITY, error);
}

/* ---------------------------------------------------------------------------------------------- */

static qp_status open_servers(simulation *s, qp_error *error)
{
    const size_t n = (size_t)s->w->options->servers;
    s->servers = calloc(n, sizeof *s->servers);
    s->heap = calloc(n, sizeof *s->heap);
    s->place = calloc(n, sizeof *s->place);
    if (!s->servers || !s->heap || !s->place) return error_no_memory(error, "the servers", n);
    for (; s->n_servers < n; s->n_servers++) {
        set_place(s, s->n_servers, (uint32_t)s->n_servers);
        TRY(fleet_server_open(s->servers + s->n_servers, &s->fleet, error));
    }
    return QP_OK;
}

static void count(load_result *out)
{
    for (size_t i = 0; i < out->n_records; i++) {
        const load_record *r = out->records + i;
        out->counts[r->outcome]++;
        if (r->outcome == LOAD_DONE && r->last > out->seconds) out->seconds = r->last;
    }
    if (out->counts[LOAD_REFUSED])
        error_set(&out->first_failure, QP_INVALID,
                  "a request needs more positions than --kv-positions");
}

static qp_status compute(simulation *s, load_result *out, qp_error *error)
{
    const load_options *o = s->w->options;
    TRY(pass_costs_read(o->costs, o->costs_length, &s->costs, error));
    TRY(list_arrivals(s, error));
    out->records = calloc(s->n, sizeof *out->records);
    if (!out->records) return error_no_memory(error, "the requests", s->n * sizeof *out->records);
    s->fleet = (fleet){.costs = &s->costs,
                       .slots = (size_t)o->parallel,
                       .chunk = o->chunk,
                       .positions = o->kv_positions,
                       .block = workload_block(s->w),
                       .records = out->records,
                       .request = request_of,
                       .context = s};
    TRY(open_servers(s, error));
    TRY(run(s, error));
    out->n_records = s->n;
    count(out);
    return QP_OK;
}

qp_status simulate(const workload *w, load_result *out, qp_error *error)
{
    simulation s = {.w = w};
    if (!workload_has_arrivals(w) || w->options->streams || w->options->warmup)
        return error_set(error, QP_INVALID,
                         "--simulate needs times of arrival, --replay or --rate, and knows neither "
                         "--streams nor --warmup");
    const qp_status status = compute(&s, out, error);
    for (size_t i = 0; i < s.n_servers; i++)
        fleet_server_close(s.servers + i);
    free(s.servers);
    free(s.heap);
    free(s.place);
    free(s.arrivals);
    free(s.sent.entries);
    return status;
}
