/* Runs one instruction at a time: see serial.h. */
#include "vm/serial.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { AHEAD = 8 }; /* instructions of a queue among which a random order chooses */

struct serial_machine {
    const schedule *schedule;
    uint32_t *counters; /* [n_counters], counting up from pass to pass */
    int32_t *place;     /* [workers]: of the first instruction of the queue that has not run */
    bool *ran;          /* [workers][longest] */
    int32_t *able;      /* [workers * AHEAD]: instructions that can run: worker * longest + place */
    uint32_t pass;
};

qp_status serial_create(const schedule *s, serial_machine **out, qp_error *error)
{
    size_t workers = (size_t)s->options.workers;
    *out = NULL;
    serial_machine *m = calloc(1, sizeof *m);
    if (m) {
        m->schedule = s;
        m->counters = calloc((size_t)s->n_counters, sizeof *m->counters);
        m->place = calloc(workers, sizeof *m->place);
        m->ran = calloc(workers * (size_t)s->longest + 1, sizeof *m->ran);
        m->able = calloc(workers * AHEAD, sizeof *m->able);
    }
    if (!m || !m->counters || !m->place || !m->ran || !m->able) {
        serial_destroy(m);
        return error_no_memory(error, "the serial machine", workers * sizeof *m->place);
    }
    *out = m;
    return QP_OK;
}

void serial_destroy(serial_machine *m)
{
    if (!m) return;
    free(m->counters);
    free(m->place);
    free(m->ran);
    free(m->able);
    free(m);
}

static const instruction *next_of(const serial_machine *m, int worker)
{
    return schedule_queue(m->schedule, worker) + m->place[worker];
}

/* The wait that blocks a worker, or -1. */
static int blocking_wait(const serial_machine *m, const instruction *in)
{
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        uint32_t counter = in->waits[w].counter;
        if (counter == 0) continue;
        uint32_t target = instruction_target(in, w, m->pass, m->schedule->per_pass[counter]);
        if (!instruction_reached(m->counters[counter], target)) return w;
    }
    return -1;
}

static qp_status stuck(const serial_machine *m, qp_error *error)
{
    for (int w = 0; w < m->schedule->options.workers; w++) {
        if (m->place[w] == m->schedule->length[w]) continue;
        const instruction *in = next_of(m, w);
        const instruction_wait *wait = &in->waits[blocking_wait(m, in)];
        return error_set(error, QP_INVALID,
                         "pass %u: worker %d, instruction %d waits for ever for counter %u, which "
                         "has %u",
                         m->pass, w, m->place[w], wait->counter, m->counters[wait->counter]);
    }
    return QP_OK;
}

/* Whether the instruction `ahead` places after the worker's next can run: the next one, when its
 * waits are over, and a shared one also before its turn. */
static bool can_run(const serial_machine *m, int worker, int ahead)
{
    const int32_t place = m->place[worker] + ahead;
    if (place >= m->schedule->length[worker]) return false;
    if (m->ran[(size_t)worker * (size_t)m->schedule->longest + (size_t)place]) return false;
    const instruction *in = schedule_queue(m->schedule, worker) + place;
    if (ahead > 0 && !(in->flags & INSTRUCTION_SHARED)) return false;
    return blocking_wait(m, in) < 0;
}

/* Collects instructions that can run, of each queue up to `ahead`; returns their number. */
static int find_able(serial_machine *m, int ahead)
{
    int n = 0;
    for (int w = 0; w < m->schedule->options.workers; w++)
        for (int i = 0; i < ahead; i++)
            if (can_run(m, w, i)) m->able[n++] = w * m->schedule->longest + m->place[w] + i;
    return n;
}

static bool is_wanted(const serial_options *o, const instruction *in)
{
    if (o->last_step == 0) return true;
    return in->step >= o->first_step && in->step < o->last_step;
}

static void step(serial_machine *m, int32_t index, const program_memory *memory,
                 const int64_t *sizes, const serial_options *o)
{
    const schedule *s = m->schedule;
    const int worker = index / s->longest;
    const instruction *in = &s->instructions[index];
    op_call call;
    if (is_wanted(o, in) && schedule_bind(m->schedule, in, memory, sizes, &call)) {
        op_kernel *kernel = o->nodes ? o->nodes[in->node].kernel : NULL;
        call.packed = o->nodes ? o->nodes[in->node].packed : NULL;
        call.scratch = o->scratch;
        if (!kernel) kernel = op_get((op_code)in->opcode)->reference;
        kernel(&call);
    }
    m->counters[in->signal]++; /* counter 0 is never used */
    m->ran[index] = true;
    while (m->place[worker] < s->length[worker] && m->ran[worker * s->longest + m->place[worker]])
        m->place[worker]++;
}

qp_status serial_run(serial_machine *m, const program_memory *memory, const int64_t *sizes,
                     const serial_options *o, qp_error *error)
{
    const schedule *s = m->schedule;
    for (int w = 0; w < s->options.workers; w++)
        m->place[w] = 0;
    memset(m->ran, 0, (size_t)s->options.workers * (size_t)s->longest * sizeof *m->ran);
    for (uint64_t turn = 0;; turn++) {
        const int n = find_able(m, o->seed ? AHEAD : 1);
        if (n == 0) break;
        const int32_t index =
            m->able[o->seed ? hash_random(o->seed, m->pass, turn) % (uint64_t)n : 0];
        const int worker = index / s->longest;
        step(m, index, memory, sizes, o);
        while (!o->seed && can_run(m, worker, 0))
            step(m, worker * s->longest + m->place[worker], memory, sizes, o);
    }
    TRY(stuck(m, error));
    m->pass++;
    return QP_OK;
}
