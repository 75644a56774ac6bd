/* Ranks that are threads of one process: each publishes the address of its stage, and the others
 * read from there.
 *
 * A rank has two stages, used in turn. It may write into one again when it has passed the exchange
 * after, in which every other rank arrived, having read what it wanted of the exchange before. So
 * one wait an exchange is enough.
 */
#include "comm/comm_parts.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE = 64, STAGES = 2, ALIGNMENT = 64 };

typedef struct stage {
    void *memory;
    size_t capacity, bytes;
    uint32_t tag;
} stage;

/* What a rank shows to the others. */
typedef struct place {
    _Alignas(CACHE_LINE) atomic_uint arrived; /* exchanges whose stage is written */
    stage stages[STAGES];
} place;

typedef struct group {
    atomic_int n_open;
    atomic_flag failing; /* the first to fail writes the message */
    atomic_bool failed;
    char message[QP_ERROR_SIZE];
    place *places; /* [size] */
} group;

typedef struct threads_comm {
    comm comm;
    group *group;
} threads_comm;

static group *group_of(const comm *c)
{
    return ((const threads_comm *)c)->group;
}

static void fail(comm *c, const char *message)
{
    group *g = group_of(c);
    if (atomic_flag_test_and_set(&g->failing)) return;
    snprintf(g->message, sizeof g->message, "%s", message);
    atomic_store(&g->failed, true);
}

static bool failed(const comm *c, const char **message)
{
    group *g = group_of(c);
    if (!atomic_load(&g->failed)) return false;
    if (message) *message = g->message;
    return true;
}

static stage *stage_of(const comm *c, int rank)
{
    return &group_of(c)->places[rank].stages[c->number % STAGES];
}

static void *take_stage(comm *c, size_t bytes)
{
    stage *s = stage_of(c, c->rank);
    if (s->capacity >= bytes && s->memory) return s->memory;
    free(s->memory);
    s->capacity = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    s->memory = aligned_alloc(ALIGNMENT, s->capacity);
    if (s->memory) return s->memory;
    s->capacity = 0;
    comm_abort(c, "there is no memory for what ranks exchange");
    return NULL;
}

static bool await_rank(comm *c, int rank, comm_wait wait)
{
    const atomic_uint *arrived = &group_of(c)->places[rank].arrived;
    comm_watch watch = comm_watch_begin(c, wait);
    while ((int32_t)(atomic_load_explicit(arrived, memory_order_acquire) - (c->number + 1)) < 0) {
        if (failed(c, NULL)) return false;
        if (comm_watch_goes_on(&watch)) continue;
        comm_fail_late(c, rank, &watch);
        return false;
    }
    return true;
}

static bool exchange(comm *c, uint32_t tag, size_t bytes, size_t most, comm_wait wait)
{
    (void)most;
    stage *own = stage_of(c, c->rank);
    own->bytes = bytes;
    own->tag = tag;
    atomic_store_explicit(&group_of(c)->places[c->rank].arrived, c->number + 1,
                          memory_order_release);
    for (int r = 0; r < c->size; r++) {
        if (r != c->rank && !await_rank(c, r, wait)) return false;
        const stage *s = stage_of(c, r);
        c->parts[r] = (comm_part){s->memory, s->bytes};
        if (s->tag == tag) continue;
        comm_fail_apart(c, r, tag, s->tag);
        return false;
    }
    return true;
}

static void free_group(group *g, int size)
{
    for (int r = 0; g->places && r < size; r++)
        for (int i = 0; i < STAGES; i++)
            free(g->places[r].stages[i].memory);
    free(g->places);
    free(g);
}

/* The last to close frees what is shared. */
static void close_end(comm *c)
{
    group *g = group_of(c);
    if (atomic_fetch_sub(&g->n_open, 1) == 1) free_group(g, c->size);
    free(c);
}

static const comm_type threads_type = {
    .exchange = exchange, .stage = take_stage, .failed = failed, .fail = fail, .close = close_end};

static group *make_group(int size)
{
    group *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->places = aligned_alloc(CACHE_LINE, (size_t)size * sizeof *g->places);
    if (!g->places) {
        free(g);
        return NULL;
    }
    memset(g->places, 0, (size_t)size * sizeof *g->places);
    atomic_flag_clear(&g->failing);
    atomic_init(&g->n_open, 1); /* held by comm_threads_open() */
    return g;
}

static comm *make_end(group *g, int rank, int size)
{
    threads_comm *t = calloc(1, sizeof *t);
    comm_part *parts = calloc((size_t)size, sizeof *parts);
    if (!t || !parts) {
        free(t);
        free(parts);
        return NULL;
    }
    t->comm = (comm){.type = &threads_type, .rank = rank, .size = size, .parts = parts};
    t->group = g;
    atomic_fetch_add(&g->n_open, 1);
    return &t->comm;
}

qp_status comm_threads_open(int size, comm **ends, qp_error *error)
{
    memset(ends, 0, (size_t)size * sizeof *ends);
    group *g = make_group(size);
    bool enough = g != NULL;
    for (int r = 0; enough && r < size; r++)
        enough = (ends[r] = make_end(g, r, size)) != NULL;
    for (int r = 0; !enough && r < size; r++) {
        comm_close(ends[r]);
        ends[r] = NULL;
    }
    if (g && atomic_fetch_sub(&g->n_open, 1) == 1) free_group(g, size);
    return enough ? QP_OK
                  : error_no_memory(error, "a group of ranks", (size_t)size * sizeof(place));
}
