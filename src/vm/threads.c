/* The machine `threads`: see threads.h. */
#include "vm/threads.h"

#include "base/clock.h"
#include "vm/ahead.h"

#include <assert.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { CACHE_LINE = 64, LOOKS_PER_CLOCK = 64 };
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
    counter *counters; /* [schedule->n_counters] */
    ahead *ahead;      /* [workers][longest] */
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
    if (!m || !m->counters || ahead_make(setup, &m->ahead, error) != QP_OK) {
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

void threads_machine_destroy(threads_machine *m)
{
    if (!m) return;
    free(m->counters);
    free(m->ahead);
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

/* Waits for one counter; false when the pass was given up. It spins while a signal is likely to
 * come soon, and prefetches weights meanwhile. Then it yields the processor, because the threads
 * that will signal may need it. */
static bool await_counter(threads_machine *m, int worker, int index, const instruction *in,
                          int wait, ahead *ahead)
{
    uint32_t number = in->waits[wait].counter;
    if (number == 0) return true;
    const atomic_uint *count = &m->counters[number].count;
    uint32_t target = instruction_target(in, wait, m->pass, m->setup.schedule->per_pass[number]);
    uint64_t last = 0, waited = 0;
    for (;;) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (instruction_reached(atomic_load_explicit(count, memory_order_acquire), target))
                return true;
            if (!ahead_ask(ahead)) relax();
        }
        if (atomic_load_explicit(&m->given_up, memory_order_relaxed)) return false;
        uint64_t now = clock_ns(), since = last ? now - last : 0;
        last = now;
        waited += since < LONGEST_LOOK_NS ? since : LONGEST_LOOK_NS;
        if (waited > m->patience_ns) {
            give_up(m, (stuck_wait){worker, index, wait, target, atomic_load(count)});
            return false;
        }
        if (waited > SPIN_NS) sched_yield();
    }
}

static bool is_selected(const threads_machine *m, const instruction *in)
{
    return m->last_step == 0 || (in->step >= m->first_step && in->step < m->last_step);
}

/* An instruction that its worker has waited for since `wait`. */
static void execute(threads_machine *m, int worker, const instruction *in, void *scratch,
                    uint64_t wait)
{
    const bound_schedule *setup = &m->setup;
    op_call call;
    if (!m->parts) {
        bound_execute(setup, in, m->sizes, scratch);
    } else if (schedule_bind(setup->schedule, in, setup->memory, m->sizes, &call)) {
        call.packed = setup->kernels[in->node].packed;
        call.scratch = scratch;
        parts_run_slice(m->parts[worker], (int)in->node, &call, setup->kernels[in->node].kernel,
                        worker, wait);
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
    void *scratch = m->setup.scratch
                        ? (char *)m->setup.scratch + (size_t)worker * m->setup.scratch_bytes
                        : NULL;
    const ahead *weights = m->ahead + (size_t)worker * (size_t)s->longest;
    const char *asked = NULL; /* the weights that were prefetched */
    ahead next = {0};
    for (int i = 0; i < s->length[worker]; i++) {
        const instruction *in = &queue[i];
        if (weights[i].data != asked) {
            next = weights[i];
            asked = next.data;
        }
        if (timing) timing[i].wait = now;
        for (int w = 0; w < INSTRUCTION_WAITS; w++) {
            if (!await_counter(m, worker, i, in, w, &next)) return;
        }
        if (timing)
            timing[i].work = in->waits[0].counter || in->waits[1].counter ? clock_ns() : now;
        if (is_selected(m, in)) execute(m, worker, in, scratch, timing ? timing[i].wait : 0);
        if (timing) timing[i].signal = clock_ns();
        if (in->signal)
            atomic_fetch_add_explicit(&m->counters[in->signal].count, 1, memory_order_release);
        if (timing) timing[i].end = now = clock_ns();
    }
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
    thread_pool_run(m->pool, run_queue, m);
    m->pass++;
    return atomic_load(&m->given_up) ? report_stuck(m, error) : QP_OK;
}
