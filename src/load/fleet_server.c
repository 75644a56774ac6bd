#include "load/fleet_server.h"

#include "load/prompt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A request that has a slot. */
struct fleet_sequence {
    uint32_t number;
    uint32_t pinned; /* blocks of its prompt */
    int64_t input, output;
    int64_t read, made; /* tokens */
    int64_t taken;      /* tokens of the prompt in the pass under way */
    int64_t own;        /* positions besides those of blocks */
};

uint64_t fleet_block_key(const fleet_request *r, size_t i)
{
    const uint64_t key = prompt_mix(r->copy, r->blocks[i]);
    return key ? key : 1;
}

qp_status fleet_server_open(fleet_server *s, const fleet *f, qp_error *error)
{
    *s = (fleet_server){.end = INFINITY};
    s->running = calloc(f->slots, sizeof *s->running);
    return s->running ? QP_OK : error_no_memory(error, "a server", f->slots);
}

void fleet_server_close(fleet_server *s)
{
    free(s->running);
    free(s->queue);
    block_cache_free(&s->cache);
}

/* ---- A slot and memory for a request --------------------------------------------------------- */

/* Blocks at the beginning of the prompt that the cache has, less the last token, which is always
 * read. */
static size_t cached_blocks(const fleet_server *s, const fleet *f, const fleet_request *r)
{
    size_t n = 0;
    while (n < r->n_blocks && (int64_t)(n + 1) * f->block < r->input &&
           block_map_find(&s->cache.map, fleet_block_key(r, n)))
        n++;
    return n;
}

/* Pins the blocks that come after those that the sequence has pinned; false: memory. */
static qp_status pin_blocks(fleet_server *s, const fleet *f, fleet_sequence *q,
                            const fleet_request *r, size_t end, bool moves, qp_error *error)
{
    for (; q->pinned < end; q->pinned++) {
        bool added;
        const uint32_t unused = s->cache.unused;
        TRY(block_cache_pin(&s->cache, fleet_block_key(r, q->pinned), &added, error));
        if (added || s->cache.unused < unused) s->held += f->block;
        if (!moves) continue; /* the positions were the sequence's own */
        q->own -= f->block;
        s->held -= f->block;
    }
    return QP_OK;
}

/* False: it does not fit now. */
static qp_status admit(fleet_server *s, const fleet *f, size_t number, bool *fits, qp_error *error)
{
    const fleet_request r = f->request(f->context, number);
    const size_t cached = cached_blocks(s, f, &r);
    const int64_t own = r.input + r.output - (int64_t)cached * f->block;
    *fits = s->held + own + (int64_t)cached * f->block <= f->positions;
    if (!*fits) return QP_OK;
    fleet_sequence *q = s->running + s->n_running++;
    *q = (fleet_sequence){.number = (uint32_t)number, .input = r.input, .output = r.output};
    TRY(pin_blocks(s, f, q, &r, cached, false, error));
    q->own = own;
    q->read = (int64_t)cached * f->block;
    s->held += own;
    f->records[number].cached_tokens = (uint32_t)q->read;
    while (s->cache.unused && s->held + (int64_t)s->cache.unused * f->block > f->positions)
        block_cache_evict(&s->cache);
    return QP_OK;
}

static qp_status admit_all(fleet_server *s, const fleet *f, qp_error *error)
{
    for (bool fits; s->n_queued && s->n_running < f->slots;) {
        TRY(admit(s, f, s->queue[s->queue_first], &fits, error));
        if (!fits) return QP_OK;
        s->queue_first = (s->queue_first + 1) % s->queue_capacity;
        s->n_queued--;
    }
    return QP_OK;
}

static void leave(fleet_server *s, const fleet *f, size_t i)
{
    fleet_sequence *q = s->running + i;
    const fleet_request r = f->request(f->context, q->number);
    load_record *record = f->records + q->number;
    record->last = s->end;
    record->outcome = LOAD_DONE;
    while (q->pinned) {
        const uint32_t unused = s->cache.unused;
        block_cache_unpin(&s->cache, fleet_block_key(&r, --q->pinned));
        if (s->cache.unused > unused) s->held -= f->block;
    }
    s->held -= q->own;
    s->load--;
    memmove(q, q + 1, (--s->n_running - i) * sizeof *q); /* the others keep their order */
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* Chooses tokens of prompts; returns how many, and the positions that they attend to. */
static int64_t take_prompts(fleet_server *s, int64_t room, double *positions)
{
    int64_t rows = 0;
    for (size_t i = 0; i < s->n_running; i++) {
        fleet_sequence *q = s->running + i;
        const int64_t left = q->input - q->read;
        q->taken = left < room - rows ? left : room - rows;
        rows += q->taken;
        *positions += (double)q->taken * ((double)q->read + (double)(q->taken + 1) / 2);
    }
    return rows;
}

static void begin_passes(fleet_server *s, const fleet *f, double now)
{
    double decoded = 0, read = 0; /* positions attended to */
    int64_t decoding = 0, passes = INT64_MAX;
    for (size_t i = 0; i < s->n_running; i++) {
        const fleet_sequence *q = s->running + i;
        if (q->read < q->input) continue;
        decoding++;
        decoded += (double)(q->input + q->made);
        if (q->output - q->made < passes) passes = q->output - q->made;
    }
    const int64_t room = f->chunk > decoding ? f->chunk - decoding : 1;
    const int64_t rows = take_prompts(s, room, &read);
    s->begin = now;
    s->end = INFINITY;
    s->passes = rows ? 1 : passes;
    if (!s->n_running) return;
    s->first_pass = pass_costs_products(f->costs, (double)(decoding + rows)) +
                    f->costs->per_decoded * decoded + f->costs->per_prompt * read;
    s->next_pass = f->costs->per_decoded * (double)decoding;
    s->end = now + (double)s->passes * s->first_pass +
             (double)(s->passes - 1) * (double)s->passes / 2 * s->next_pass;
}

/* The passes under way end with the one at `now`: a request has come that can have a slot. */
static void cut_passes(fleet_server *s, double now)
{
    int64_t low = 1, high = s->passes;
    while (low < high) {
        const int64_t n = low + (high - low) / 2;
        const double took =
            (double)n * s->first_pass + (double)(n - 1) * (double)n / 2 * s->next_pass;
        if (s->begin + took >= now)
            high = n;
        else
            low = n + 1;
    }
    s->passes = low;
    s->end =
        s->begin + (double)low * s->first_pass + (double)(low - 1) * (double)low / 2 * s->next_pass;
}

static qp_status end_passes(fleet_server *s, const fleet *f, qp_error *error)
{
    for (size_t i = s->n_running; i-- > 0;) {
        fleet_sequence *q = s->running + i;
        if (q->read == q->input) {
            q->made += s->passes;
        } else if ((q->read += q->taken) == q->input) {
            const fleet_request r = f->request(f->context, q->number);
            const size_t whole = (size_t)(r.input / f->block);
            q->made = 1;
            f->records[q->number].first = s->end;
            TRY(pin_blocks(s, f, q, &r, r.n_blocks < whole ? r.n_blocks : whole, true, error));
        }
        if (q->made >= q->output) leave(s, f, i);
    }
    return QP_OK;
}

qp_status fleet_server_step(fleet_server *s, const fleet *f, qp_error *error)
{
    const double now = s->end;
    TRY(end_passes(s, f, error));
    TRY(admit_all(s, f, error));
    begin_passes(s, f, now);
    return QP_OK;
}

qp_status fleet_server_take(fleet_server *s, const fleet *f, size_t number, double now,
                            qp_error *error)
{
    const fleet_request r = f->request(f->context, number);
    if (r.input + r.output > f->positions) {
        f->records[number].outcome = LOAD_REFUSED;
        return QP_OK;
    }
    if (s->n_queued == s->queue_capacity) {
        const size_t more = s->queue_capacity ? 2 * s->queue_capacity : 16;
        uint32_t *grown = calloc(more, sizeof *grown);
        if (!grown) return error_no_memory(error, "a queue", more);
        for (size_t i = 0; i < s->n_queued; i++)
            grown[i] = s->queue[(s->queue_first + i) % s->queue_capacity];
        free(s->queue);
        s->queue = grown;
        s->queue_first = 0;
        s->queue_capacity = more;
    }
    s->queue[(s->queue_first + s->n_queued++) % s->queue_capacity] = (uint32_t)number;
    s->load++;
    if (s->end == INFINITY) {
        TRY(admit_all(s, f, error));
        begin_passes(s, f, now);
    } else if (s->n_running < f->slots) {
        cut_passes(s, now);
    }
    return QP_OK;
}
