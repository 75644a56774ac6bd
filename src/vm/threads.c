/* The machine `threads`: see threads.h. */
#include "vm/threads.h"

#include "base/clock.h"
#include "vm/prefetch.h"
#include "vm/claims.h"
#include "vm/segments.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { CACHE_LINE = 64, LOOKS_PER_CLOCK = 64, LOOKS_PER_HELP = 16 };
static const uint64_t SPIN_NS = 20000;
/* The most time that one reading of the clock may add to a wait, because a process may have been
 * suspended between two readings. */
static const uint64_t LONGEST_LOOK_NS = 100000000;
static const uint64_t DEFAULT_PATIENCE_NS = UINT64_C(30000000000);

/* One cache line per counter, so that a signal does not disturb the waits for other counters. */
typedef struct counter {
    _Alignas(CACHE_LINE) atomic_uint count;
} counter;

/* The first wait that lasted too long. */
typedef struct stuck_wait {
    int worker, index, wait;
    uint32_t target, found;
} stuck_wait;

struct threads_machine {
    bound_schedule setup;
    thread_pool *pool;
    uint64_t patience_ns;
    counter *counters;  /* [schedule->n_counters] */
    prefetch *prefetch; /* [workers][longest] */
    claims *claims;
    segments *segments; /* NULL: attention is not cut by positions */
    uint32_t pass;
    int first_step, last_step; /* the steps that run; 0, 0: all */
    const int64_t *sizes;
    instruction_timing *timings;
    parts *const *parts; /* [workers]; NULL: instructions run whole */
    atomic_bool given_up;
    atomic_flag reported; /* set by the first worker that gives up: only it writes `stuck` */
    stuck_wait stuck;
};

qp_status threads_machine_create(const bound_schedule *setup, thread_pool *pool,
                                 uint64_t patience_ns, threads_machine **out, qp_error *error)
{
    const schedule *s = setup->schedule;
    assert(thread_pool_size(pool) == s->options.workers);
    *out = NULL;
    threads_machine *m = calloc(1, sizeof *m);
    size_t bytes = (size_t)s->n_counters * sizeof(counter);
    if (m) m->counters = aligned_alloc(CACHE_LINE, bytes ? bytes : CACHE_LINE);
    if (!m || !m->counters || prefetch_table(setup, &m->prefetch, error) != QP_OK ||
        claims_create(setup, &m->claims, error) != QP_OK ||
        segments_create(s->program, s->options.workers, &m->segments, error) != QP_OK) {
        threads_machine_destroy(m);
        return error_no_memory(error, "the machine", sizeof *m + bytes);
    }
    atomic_flag_clear(&m->reported);
    m->setup = *setup;
    m->pool = pool;
    m->patience_ns = patience_ns ? patience_ns : DEFAULT_PATIENCE_NS;
    for (int i = 0; i < s->n_counters; i++)
        atomic_init(&m->counters[i].count, 0);
    *out = m;
    return QP_OK;
}

qp_status threads_machine_find_weights(threads_machine *m, qp_error *error)
{
    prefetch *found;
    TRY(prefetch_table(&m->setup, &found, error));
    free(m->prefetch);
    m->prefetch = found;
    return QP_OK;
}

void threads_machine_destroy(threads_machine *m)
{
    if (!m) return;
    free(m->counters);
    free(m->prefetch);
    claims_destroy(m->claims);
    segments_destroy(m->segments);
    free(m);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void give_up(threads_machine *m, stuck_wait stuck)
{
    if (!atomic_flag_test_and_set(&m->reported)) m->stuck = stuck;
    atomic_store(&m->given_up, true);
}

/* A worker in a pass. */
typedef struct runner {
    threads_machine *m;
    int worker;
    void *scratch;
    instruction_timing *timing; /* of the instruction at hand; NULL: not recorded */
    uint64_t free_at;           /* when it ended what it did last, where that is recorded */
} runner;

static bool is_selected(const threads_machine *m, const instruction *in)
{
    return m->last_step == 0 || (in->step >= m->first_step && in->step < m->last_step);
}

static void compute(runner *r, const instruction *in, op_call *call)
{
    const threads_machine *m = r->m;
    const bound_kernel *kernel = &m->setup.kernels[in->node];
    call->packed = kernel->packed;
    call->scratch = r->scratch;
    if (!m->parts) {
        kernel->kernel(call);
        return;
    }
    parts_run_slice(m->parts[r->worker], (int)in->node, call, kernel->kernel, r->worker,
                    r->free_at);
    r->free_at = clock_ns();
}

static void signal(threads_machine *m, const instruction *in)
{
    if (in->signal)
        atomic_fetch_add_explicit(&m->counters[in->signal].count, 1, memory_order_release);
}

/* An instruction that only its own worker runs. */
static void run_whole(runner *r, const instruction *in)
{
    op_call call;
    if (is_selected(r->m, in) &&
        schedule_bind(r->m->setup.schedule, in, r->m->setup.memory, r->m->sizes, &call))
        compute(r, in, &call);
}

/* The call of a shared instruction's cells; it is bound again where the rows change. */
typedef struct cell_call {
    op_call call;
    instruction_span rows;
    bool bound;
} cell_call;

static void run_cell(runner *r, const claimed *of, int32_t number, cell_call *c)
{
    const threads_machine *m = r->m;
    if (!is_selected(m, of->in) || of->in->opcode == INSTRUCTION_NOOP) return;
    const cell cell = cells_at(&of->cut, number);
    if (cell.begin >= cell.end) return;
    const bool kept = c->bound && cell.rows.begin == c->rows.begin;
    if (!kept) {
        instruction in = *of->in;
        if (of->cut.block) in.tokens = cell.rows;
        c->rows = cell.rows;
        schedule_bind(m->setup.schedule, &in, m->setup.memory, m->sizes, &c->call);
        c->bound = true;
    }
    c->call.begin = cell.begin;
    c->call.end = cell.end;
    c->call.scratch_kept = kept;
    if (of->cut.segments) {
        c->call.scratch = r->scratch;
        segments_run(m->segments, m->setup.kernels[of->in->node].kernel, &c->call, cell.segment,
                     of->cut.segments);
        return;
    }
    compute(r, of->in, &c->call);
}

/* A shared instruction, by the worker in whose queue it stands. */
static void run_own(runner *r, int32_t place)
{
    threads_machine *m = r->m;
    const claimed of = claims_of(m->claims, place);
    cell_call call = {.bound = false};
    int32_t n = 0;
    for (int32_t cell; (cell = claims_take_first(m->claims, &of)) >= 0; n++)
        run_cell(r, &of, cell, &call);
    if (n > 0 && claims_end(m->claims, &of, n)) signal(m, of.in);
}

static bool is_reached(const threads_machine *m, const instruction *in, int wait)
{
    const uint32_t number = in->waits[wait].counter;
    if (number == 0) return true;
    const uint32_t target =
        instruction_target(in, wait, m->pass, m->setup.schedule->per_pass[number]);
    return instruction_reached(
        atomic_load_explicit(&m->counters[number].count, memory_order_acquire), target);
}

static bool is_ready(const void *context, const instruction *in)
{
    for (int w = 0; w < INSTRUCTION_WAITS; w++)
        if (!is_reached(context, in, w)) return false;
    return true;
}

static void record_help(instruction_timing *timing, const claimed *of, uint64_t begin)
{
    if (timing->help_end == 0) timing->help_begin = begin;
    timing->help_end = clock_ns();
    timing->help = of->place;
}

/* Runs a cell of what will signal the counter; false if there is none left. */
static bool help(runner *r, uint32_t counter, bool alone)
{
    threads_machine *m = r->m;
    claimed of;
    if (!claims_find(m->claims, counter, is_ready, m, alone, &of)) return false;
    const int32_t cell = claims_take_last(m->claims, &of);
    if (cell < 0) return true; /* another worker has just taken it: search again */
    cell_call call = {.bound = false};
    const uint64_t begin = r->timing ? clock_ns() : 0;
    run_cell(r, &of, cell, &call);
    if (claims_end(m->claims, &of, 1)) signal(m, of.in);
    if (r->timing) record_help(r->timing, &of, begin);
    return true;
}

/* The same, or a piece of an exchange with other ranks. */
static bool help_out(runner *r, uint32_t counter, bool alone)
{
    crew *crew = r->m->setup.crew;
    return (crew && crew_help(crew)) || help(r, counter, alone);
}

/* Waits for one counter; false when the pass was given up. Meanwhile it runs cells of what is
 * waited for. Where there are none it spins while a signal is likely to come soon, and prefetches
 * weights. Then it yields the processor, because the threads that will signal may need it. */
static bool await_counter(runner *r, int index, const instruction *in, int wait, prefetch *prefetch)
{
    threads_machine *m = r->m;
    const uint32_t number = in->waits[wait].counter;
    uint64_t last = 0, waited = 0;
    if (number == 0) return true;
    for (;;) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (is_reached(m, in, wait)) return true;
            if (i % LOOKS_PER_HELP == 0 && help_out(r, number, waited > SPIN_NS))
                i = waited = last = 0;
            if (!prefetch_more(prefetch)) relax();
        }
        if (atomic_load_explicit(&m->given_up, memory_order_relaxed)) return false;
        uint64_t now = clock_ns(), since = last ? now - last : 0;
        last = now;
        waited += since < LONGEST_LOOK_NS ? since : LONGEST_LOOK_NS;
        if (waited > m->patience_ns) {
            const uint32_t target =
                instruction_target(in, wait, m->pass, m->setup.schedule->per_pass[number]);
            give_up(m, (stuck_wait){r->worker, index, wait, target,
                                    atomic_load(&m->counters[number].count)});
            return false;
        }
        if (waited > SPIN_NS) sched_yield();
    }
}

static void run_queue(void *context, int worker, int n_workers)
{
    (void)n_workers;
    threads_machine *m = context;
    const schedule *s = m->setup.schedule;
    const instruction *queue = schedule_queue(s, worker);
    instruction_timing *timing =
        m->timings ? m->timings + (size_t)worker * (size_t)s->longest : NULL;
    uint64_t now = timing ? clock_ns() : 0;
    runner r = {.m = m, .worker = worker};
    if (m->setup.scratch)
        r.scratch = (char *)m->setup.scratch + (size_t)worker * m->setup.scratch_bytes;
    const prefetch *weights = m->prefetch + (size_t)worker * (size_t)s->longest;
    const char *asked = NULL; /* the weights that were prefetched */
    prefetch next = {0};
    for (int i = 0; i < s->length[worker]; i++) {
        const instruction *in = &queue[i];
        if (weights[i].data != asked) {
            next = weights[i];
            asked = next.data;
        }
        if (timing) {
            timing[i] = (instruction_timing){.wait = now};
            r.timing = &timing[i];
            r.free_at = now;
        }
        for (int w = 0; w < INSTRUCTION_WAITS; w++) {
            if (!await_counter(&r, i, in, w, &next)) return;
        }
        if (timing)
            timing[i].work = in->waits[0].counter || in->waits[1].counter ? clock_ns() : now;
        const bool shared = in->flags & INSTRUCTION_SHARED;
        if (shared)
            run_own(&r, worker * s->longest + i);
        else
            run_whole(&r, in);
        if (timing) timing[i].signal = clock_ns();
        if (!shared) signal(m, in);
        if (timing) timing[i].end = now = clock_ns();
    }
    r.timing = NULL;
    const int last = s->length[worker] - 1;
    bool helped = false;
    while (last >= 0 && help(&r, queue[last].signal, true))
        helped = true;
    if (timing && helped) timing[last].signal = timing[last].end = clock_ns();
}

static qp_status report_stuck(const threads_machine *m, qp_error *error)
{
    const stuck_wait *at = &m->stuck;
    const schedule *s = m->setup.schedule;
    const instruction *in = &schedule_queue(s, at->worker)[at->index];
    return error_set(error, QP_INVALID,
                     "worker %d is stuck at instruction %d (%s, layer %d): counter %u must reach "
                     "%u, but stays at %u; the schedule is unsound: check it with --verify",
                     at->worker, at->index,
                     in->opcode == INSTRUCTION_NOOP ? "noop" : s->program->nodes[in->node].name,
                     in->layer, in->waits[at->wait].counter, at->target, at->found);
}

void threads_machine_in_parts(threads_machine *m, parts *const *parts)
{
    m->parts = parts;
}

void threads_machine_select(threads_machine *m, int first, int last)
{
    m->first_step = first;
    m->last_step = last;
}

qp_status threads_machine_run(threads_machine *m, const int64_t *sizes, instruction_timing *timings,
                              qp_error *error)
{
    m->sizes = sizes;
    m->timings = timings;
    claims_begin(m->claims, m->pass, sizes, m->parts != NULL);
    thread_pool_run(m->pool, run_queue, m);
    m->pass++;
    return atomic_load(&m->given_up) ? report_stuck(m, error) : QP_OK;
}
