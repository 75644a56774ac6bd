/* Proof that a schedule is sound: see verify.h.
 *
 * The queues are run without their operators, each instruction as soon as its waits are over. Every
 * instruction has a vector clock: how many instructions of each queue must have ended before it
 * begins. A wait for all of a counter's signals adds the clocks of all that signal it. "a comes
 * before b" means that b's clock includes a. Equal clocks are stored once; most are equal, because
 * groups of instructions wait for the same counters. This file shares no code with the files that
 * make schedules.
 *
 * A shared instruction may run before its queue has come to it, and end after its queue has gone
 * on. So its clock has what its waits say and nothing of its queue, and only its counter, when all
 * signals have come, says that it has ended.
 */
#include "schedule/verify.h"

#include "schedule/verifier.h"

#include <stdlib.h>
#include <string.h>

qp_status verifier_refuse(const verifier *v, int32_t index, const char *what)
{
    const instruction *in = verifier_at(v, index);
    const char *name = in->opcode < OP_COUNT ? op_get((op_code)in->opcode)->name : "noop";
    return error_set(v->error, QP_INVALID, "schedule: worker %d, instruction %d (%s, layer %d): %s",
                     (int)(index / v->s->longest), (int)(index % v->s->longest), name, in->layer,
                     what);
}

/* ---- What comes before what ----------------------------------------------------------------- */

bool verifier_covers(const verifier *v, const int32_t *a, const int32_t *b)
{
    for (int i = 0; i < v->workers; i++) {
        if (a[i] < b[i]) return false;
    }
    for (size_t i = (size_t)v->workers; i < v->clock_words; i++) {
        if (b[i] & ~a[i]) return false;
    }
    return true;
}

static int32_t *new_clock(verifier *v)
{
    return arena_alloc(&v->memory, v->clock_words, sizeof(int32_t));
}

/* into = what either of the two includes */
static void add_clock(const verifier *v, int32_t *into, const int32_t *from)
{
    for (int i = 0; i < v->workers; i++)
        into[i] = into[i] > from[i] ? into[i] : from[i];
    for (size_t i = (size_t)v->workers; i < v->clock_words; i++)
        into[i] |= from[i];
}

static uint32_t counter_bit(uint32_t counter)
{
    return (uint32_t)1 << counter % 32;
}

void verifier_add(const verifier *v, int32_t index, int32_t *clock)
{
    const int32_t worker = index / v->s->longest, place = index % v->s->longest;
    const uint32_t counter = verifier_at(v, index)->signal;
    if (verifier_is_shared(v, index))
        clock[(uint32_t)v->workers + counter / 32] |= (int32_t)counter_bit(counter);
    else if (clock[worker] <= place)
        clock[worker] = place + 1;
}

/* The clock that includes both: one of the two if it includes the other. */
static const int32_t *merge(verifier *v, const int32_t *a, const int32_t *b)
{
    if (a == b || verifier_covers(v, a, b)) return a;
    if (verifier_covers(v, b, a)) return b;
    int32_t *both = new_clock(v);
    if (!both) return NULL;
    add_clock(v, both, a);
    add_clock(v, both, b);
    return both;
}

/* Whether a wait for this pass is not over yet. */
static bool is_blocked(const verifier *v, const instruction *in)
{
    for (int w = 0; w < INSTRUCTION_WAITS; w++) {
        const instruction_wait *wait = &in->waits[w];
        bool previous = in->flags >> w & 1;
        if (wait->counter && !previous && v->signalled[wait->counter] < wait->needed) return true;
    }
    return false;
}

/* The clock of a worker's next instruction when its waits are over. A wait for only some of the
 * signals adds nothing, because any of the instructions may have sent them. `previous`: [counters]
 * clocks of the previous pass. */
static const int32_t *learn(verifier *v, const int32_t *clock, const instruction *in,
                            int32_t *const *previous)
{
    for (int w = 0; w < INSTRUCTION_WAITS && clock; w++) {
        const instruction_wait *wait = &in->waits[w];
        if (wait->counter == 0 || wait->needed < v->s->per_pass[wait->counter]) continue;
        if (in->flags >> w & 1) {
            if (previous) clock = merge(v, clock, previous[wait->counter]);
        } else {
            clock = merge(v, clock, v->counter_clock[wait->counter]);
        }
    }
    return clock;
}

/* Adds the clock of a signalling instruction to its counter's, and in the first pass the
 * instruction itself: in the second, clocks count the first. */
static void teach(verifier *v, int32_t index, bool first_pass)
{
    const uint32_t counter = verifier_at(v, index)->signal;
    add_clock(v, v->counter_clock[counter], v->knows[index]);
    if (first_pass) verifier_add(v, index, v->counter_clock[counter]);
    v->signalled[counter]++;
}

/* Runs an instruction whose waits are over. */
static bool run_instruction(verifier *v, int32_t index, int32_t *const *previous)
{
    const instruction *in = verifier_at(v, index);
    const int32_t **clock = &v->worker_clock[index / v->s->longest];
    *clock = learn(v, *clock, in, previous);
    v->knows[index] = verifier_is_shared(v, index) ? learn(v, v->nothing, in, previous) : *clock;
    if (!*clock || !v->knows[index]) return false;
    if (in->signal) teach(v, index, !previous);
    return true;
}

static qp_status allocate_clocks(verifier *v)
{
    size_t counters = (size_t)v->s->n_counters;
    v->counter_clock = arena_alloc(&v->memory, counters, sizeof *v->counter_clock);
    v->signalled = arena_alloc(&v->memory, counters, sizeof *v->signalled);
    int32_t *all = arena_alloc(&v->memory, counters * v->clock_words, sizeof *all);
    if (!v->counter_clock || !v->signalled || !all)
        return error_no_memory(v->error, "the proof of the schedule",
                               counters * v->clock_words * sizeof *all);
    for (size_t c = 0; c < counters; c++)
        v->counter_clock[c] = all + c * v->clock_words;
    return QP_OK;
}

/* Runs all queues to their ends, or names the instruction that is stuck. In the first pass
 * (previous NULL) each instruction's clock is kept; in the second, clocks count the previous pass.
 */
static qp_status run_pass(verifier *v, int32_t *const *previous)
{
    const schedule *s = v->s;
    TRY(allocate_clocks(v));
    int32_t *place = arena_alloc(&v->memory, (size_t)v->workers, sizeof *place);
    if (!place) return error_no_memory(v->error, "the proof of the schedule", 0);
    for (bool moved = true; moved;) {
        moved = false;
        for (int w = 0; w < v->workers; w++) {
            for (; place[w] < s->length[w]; place[w]++) {
                int32_t index = w * s->longest + place[w];
                if (is_blocked(v, verifier_at(v, index))) break;
                if (!run_instruction(v, index, previous))
                    return error_no_memory(v->error, "the proof of the schedule", 0);
                moved = true;
            }
        }
    }
    for (int w = 0; w < v->workers; w++) {
        if (place[w] < s->length[w])
            return verifier_refuse(v, w * s->longest + place[w], "its wait never ends");
    }
    return QP_OK;
}

static qp_status check_counts(const verifier *v)
{
    for (int c = 1; c < v->s->n_counters; c++) {
        if (v->signalled[c] != v->s->per_pass[c])
            return error_set(v->error, QP_INVALID,
                             "schedule: counter %d gets %u signals in a pass, expected %u", c,
                             v->signalled[c], v->s->per_pass[c]);
    }
    return QP_OK;
}

bool verifier_is_before(const verifier *v, int32_t a, int32_t b)
{
    int32_t longest = v->s->longest, worker = a / longest, place = a % longest;
    const uint32_t counter = verifier_at(v, a)->signal;
    if (verifier_is_shared(v, a))
        return (uint32_t)v->knows[b][(uint32_t)v->workers + counter / 32] & counter_bit(counter);
    if (b / longest == worker && !verifier_is_shared(v, b)) return place < b % longest;
    return v->knows[b][worker] > place;
}

/* ---- Two passes ----------------------------------------------------------------------------- */

/* A clock that includes all instructions of a pass. */
static int32_t *whole_pass(verifier *v)
{
    int32_t *all = new_clock(v);
    for (int w = 0; all && w < v->workers; w++) {
        for (int i = 0; i < v->s->length[w]; i++)
            verifier_add(v, w * v->s->longest + i, all);
    }
    return all;
}

/* Runs a second pass with the clocks of the first one's counters: the clock of each worker's first
 * instruction must include all of the first pass. That is enough for shared instructions too,
 * because a worker that runs one has begun its own queue. */
static qp_status check_passes(verifier *v)
{
    const schedule *s = v->s;
    int32_t **first_pass = v->counter_clock;
    const int32_t **knows = v->knows, **kept = v->worker_clock;
    const int32_t *all = whole_pass(v);
    v->knows = calloc((size_t)v->workers * (size_t)s->longest + 1, sizeof *v->knows);
    v->worker_clock = arena_alloc(&v->memory, (size_t)v->workers, sizeof *v->worker_clock);
    qp_status status = all && v->knows && v->worker_clock
                           ? QP_OK
                           : error_no_memory(v->error, "the proof of the schedule", 0);
    for (int w = 0; w < v->workers && status == QP_OK; w++) {
        int32_t *clock = new_clock(v);
        if (!clock) {
            status = error_no_memory(v->error, "the proof of the schedule", 0);
            break;
        }
        memcpy(clock, kept[w], v->clock_words * sizeof *clock);
        clock[w] = s->length[w];
        v->worker_clock[w] = clock;
    }
    if (status == QP_OK) status = run_pass(v, first_pass);
    for (int w = 0; w < v->workers && status == QP_OK; w++) {
        if (s->length[w] && !verifier_covers(v, v->knows[w * s->longest], all))
            status = verifier_refuse(v, w * s->longest,
                                     "it may begin before the previous pass has ended");
    }
    free(v->knows);
    v->knows = knows;
    return status;
}

/* ---- All of it ----------------------------------------------------------------------------- */

static qp_status allocate(verifier *v)
{
    const schedule *s = v->s;
    size_t workers = (size_t)v->workers, all = workers * (size_t)s->longest;
    v->knows = arena_alloc(&v->memory, all, sizeof *v->knows);
    v->by_node = arena_alloc(&v->memory, all, sizeof *v->by_node);
    v->node_first = arena_alloc(&v->memory, (size_t)s->n_nodes + 1, sizeof *v->node_first);
    v->worker_clock = arena_alloc(&v->memory, workers, sizeof *v->worker_clock);
    v->clock_words = workers + (size_t)s->n_counters / 32 + 1;
    v->nothing = new_clock(v);
    if (!v->knows || !v->by_node || !v->node_first || !v->worker_clock || !v->nothing)
        return error_no_memory(v->error, "the proof of the schedule", all * sizeof *v->knows);
    for (int w = 0; w < v->workers; w++)
        v->worker_clock[w] = v->nothing;
    return QP_OK;
}

/* Positions and indices are 32 bits, and there is something to run. */
static qp_status check_sizes(const verifier *v)
{
    const schedule *s = v->s;
    if (v->workers >= 1 && v->workers <= SCHEDULE_MAX_WORKERS && s->longest >= 1 &&
        s->longest <= INT32_MAX / SCHEDULE_MAX_WORKERS && s->n_counters >= 1 && s->n_nodes >= 1)
        return QP_OK;
    return error_set(v->error, QP_INVALID,
                     "schedule: %d queues of %d instructions for %d nodes cannot be run",
                     v->workers, s->longest, s->n_nodes);
}

static qp_status verify(verifier *v)
{
    TRY(check_sizes(v));
    TRY(allocate(v));
    TRY(verifier_check_records(v));
    TRY(verifier_sort_by_node(v));
    TRY(verifier_check_cover(v));
    TRY(run_pass(v, NULL));
    TRY(check_counts(v));
    TRY(verifier_check_exchanges(v));
    TRY(verifier_check_memory(v));
    return check_passes(v);
}

qp_status schedule_verify(const schedule *s, qp_error *error)
{
    verifier v = {.s = s, .workers = s->options.workers, .error = error};
    qp_status status = verify(&v);
    arena_free(&v.memory);
    return status;
}
