/* Neighbours of a schedule: see neighbour.h. Counters say what an instruction waits for and how
 * often each is signalled, whoever runs what, so that instructions move without any change. */
#include "schedule/neighbour.h"

#include "base/hash.h"
#include "schedule/draft.h"
#include "schedule/predict.h"
#include "schedule/verify.h"

#include <stdlib.h>
#include <string.h>

/* An instruction, with the time at which it is predicted to begin, or one to be placed. */
typedef struct placed {
    instruction in;
    double begin;
} placed;

typedef struct queues {
    int workers, longest; /* room for `longest` in each */
    int *length;
    placed *of; /* [workers][longest] */
} queues;

static uint64_t next_random(uint64_t *seed, uint64_t below)
{
    *seed = hash_mix(*seed + 1);
    return *seed % below;
}

static placed *queue_of(const queues *q, int worker)
{
    return q->of + (size_t)worker * (size_t)q->longest;
}

static void take_out(queues *q, int worker, int at, placed *out)
{
    placed *queue = queue_of(q, worker);
    *out = queue[at];
    memmove(queue + at, queue + at + 1, (size_t)(--q->length[worker] - at) * sizeof *queue);
}

static void put_in(queues *q, int worker, int at, const placed *in)
{
    placed *queue = queue_of(q, worker);
    memmove(queue + at + 1, queue + at, (size_t)(q->length[worker]++ - at) * sizeof *queue);
    queue[at] = *in;
}

/* The place in a queue of the first instruction that begins at or after a time. */
static int place_at(const queues *q, int worker, double begin)
{
    const placed *queue = queue_of(q, worker);
    int at = 0;
    while (at < q->length[worker] && queue[at].begin < begin)
        at++;
    return at;
}

/* To another worker, at the same time. */
static void move_one(queues *q, int from, int at, int to)
{
    placed moved;
    if (q->length[to] == q->longest) return;
    take_out(q, from, at, &moved);
    put_in(q, to, place_at(q, to, moved.begin), &moved);
}

/* Changes places with the one that another worker runs then; each keeps its new place's time. */
static void exchange(queues *q, int from, int at, int to)
{
    placed *a = &queue_of(q, from)[at];
    const int place = place_at(q, to, a->begin);
    if (place == q->length[to]) return;
    placed *b = &queue_of(q, to)[place];
    const instruction kept = a->in;
    a->in = b->in;
    b->in = kept;
}

static void delay(queues *q, int worker, int at)
{
    placed *queue = queue_of(q, worker);
    if (at + 1 >= q->length[worker]) return;
    const instruction kept = queue[at].in;
    queue[at].in = queue[at + 1].in;
    queue[at + 1].in = kept;
}

static void change(queues *q, uint64_t *seed)
{
    const int from = (int)next_random(seed, (uint64_t)q->workers);
    if (q->length[from] == 0) return;
    const int at = (int)next_random(seed, (uint64_t)q->length[from]);
    const int step = q->workers > 1 ? 1 + (int)next_random(seed, (uint64_t)q->workers - 1) : 0;
    const int to = (from + step) % q->workers;
    const uint64_t kind = q->workers > 1 ? next_random(seed, 3) : 2;
    if (kind == 0)
        move_one(q, from, at, to);
    else if (kind == 1)
        exchange(q, from, at, to);
    else
        delay(q, from, at);
}

static qp_status read_queues(const schedule *s, int room, queues *out, qp_error *error)
{
    const int workers = s->options.workers;
    *out = (queues){.workers = workers, .longest = s->longest + room};
    out->length = calloc((size_t)workers, sizeof *out->length);
    out->of = calloc((size_t)workers * (size_t)out->longest, sizeof *out->of);
    if (!out->length || !out->of) return error_no_memory(error, "the schedule's queues", 0);
    schedule_prediction predicted;
    qp_status status = schedule_predict(s, &predicted, error);
    for (int w = 0; status == QP_OK && w < workers; w++) {
        out->length[w] = s->length[w];
        for (int i = 0; i < s->length[w]; i++)
            queue_of(out, w)[i] =
                (placed){schedule_queue(s, w)[i],
                         predicted.begin[(size_t)w * (size_t)s->longest + (size_t)i]};
    }
    prediction_free(&predicted);
    return status;
}

qp_status schedule_arrange(const schedule *from, const instruction *const *order,
                           const int *lengths, schedule *out, qp_error *error)
{
    const size_t counters = (size_t)from->n_counters * sizeof *from->per_pass;
    const int workers = from->options.workers;
    int longest = 0;
    for (int w = 0; w < workers; w++)
        if (lengths[w] > longest) longest = lengths[w];
    *out = (schedule){.options = from->options};
    TRY(draft_take_program(from->program, out, error));
    memcpy(out->costs, from->costs, (size_t)from->n_nodes * sizeof *out->costs);
    out->n_counters = from->n_counters;
    out->per_pass = arena_alloc(&out->memory, (size_t)from->n_counters, sizeof *out->per_pass);
    if (!out->per_pass) return error_no_memory(error, "the schedule's counters", counters);
    memcpy(out->per_pass, from->per_pass, counters);
    TRY(tensorize_allocate(out, longest, error));
    for (int w = 0; w < workers; w++) {
        out->length[w] = lengths[w];
        for (int i = 0; i < lengths[w]; i++)
            out->instructions[(size_t)w * (size_t)longest + (size_t)i] = **order++;
    }
    return QP_OK;
}

static qp_status write_queues(const schedule *from, const queues *q, schedule *out, qp_error *error)
{
    const size_t most = (size_t)q->workers * (size_t)q->longest;
    const instruction **order = calloc(most + 1, sizeof *order);
    size_t n = 0;
    if (!order) return error_no_memory(error, "the schedule's queues", most * sizeof *order);
    for (int w = 0; w < q->workers; w++)
        for (int i = 0; i < q->length[w]; i++)
            order[n++] = &queue_of(q, w)[i].in;
    qp_status status = schedule_arrange(from, order, q->length, out, error);
    free(order);
    return status;
}

qp_status schedule_neighbour(const schedule *from, int moves, uint64_t *seed, schedule *out,
                             qp_error *error)
{
    queues q;
    *out = (schedule){0};
    qp_status status = read_queues(from, moves, &q, error);
    for (int i = 0; status == QP_OK && i < moves; i++)
        change(&q, seed);
    if (status == QP_OK) status = write_queues(from, &q, out, error);
    free(q.length);
    free(q.of);
    return status;
}

qp_status schedule_sound_neighbour(const schedule *from, int moves, uint64_t *seed, schedule *out,
                                   qp_error *error)
{
    for (int tries = 0; tries < 100; tries++) {
        qp_status status = schedule_neighbour(from, moves, seed, out, error);
        if (status == QP_OK && schedule_verify(out, NULL) == QP_OK) return QP_OK;
        schedule_free(out);
        *out = (schedule){0};
        TRY(status);
    }
    return QP_OK;
}

/* The predicted time of a sound schedule; 0: it is not sound. */
static qp_status judge(const schedule *s, double most, double *ns, qp_error *error)
{
    schedule_prediction predicted;
    *ns = 0;
    TRY(schedule_predict(s, &predicted, error));
    const double total = predicted.total;
    /* A deadlock leaves instructions that never begin, so that the end seems near. */
    if (total < most && schedule_verify(s, NULL) == QP_OK) *ns = total;
    prediction_free(&predicted);
    return QP_OK;
}

qp_status schedule_climb(const schedule *from, int tries, uint64_t *seed, schedule *out, double *ns,
                         qp_error *error)
{
    schedule_prediction predicted;
    *out = (schedule){0};
    TRY(schedule_predict(from, &predicted, error));
    *ns = predicted.total;
    prediction_free(&predicted);
    qp_status status = schedule_neighbour(from, 0, seed, out, error);
    for (int i = 0; status == QP_OK && i < tries; i++) {
        schedule next;
        double total = 0;
        const int moves = 1 + (int)next_random(seed, 4);
        status = schedule_neighbour(out, moves, seed, &next, error);
        if (status == QP_OK) status = judge(&next, *ns, &total, error);
        if (status == QP_OK && total > 0) {
            schedule_free(out);
            *out = next;
            *ns = total;
        } else {
            schedule_free(&next);
        }
    }
    return status;
}
