/* Ranks that share memory: threads of one process, or processes of one host. Each publishes its
 * stage, and the others read from there.
 *
 * A rank has two stages, used in turn. It may write into one again when it has passed the exchange
 * after, in which every other rank arrived, having read what it wanted of the exchange before. So
 * one wait an exchange is enough.
 *
 * The stages of threads are allocated. Those of processes, and what they have in common, lie in one
 * file without a name, which the first rank makes and the others open through /proc, so nothing is
 * left when all have ended, however they end. The file has the largest size that stages can have;
 * only pages that were written take memory.
 */
#include "comm/comm_parts.h"

#include "base/clock.h"
#include "base/platform.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CACHE_LINE = 64, STAGES = 2, ALIGNMENT = 64, TAG_SHARE = 0x73686172 };
#define FILE_NAME "quipu-ranks"
static const size_t FILE_STAGE = (size_t)1 << 30; /* as MPI's messages are limited to */

typedef struct stage {
    void *memory; /* of threads */
    size_t capacity, bytes;
    uint32_t tag;
} stage;

/* What a rank shows to the others. */
typedef struct place {
    _Alignas(CACHE_LINE) atomic_uint arrived; /* exchanges whose stage is written */
    stage stages[STAGES];
} place;

typedef struct group {
    uint64_t key; /* of processes: by which they know that it is the same */
    char *common; /* of threads; NULL: there was no room for it */
    atomic_int n_open;
    atomic_flag failing; /* the first to fail writes the message */
    atomic_bool failed;
    char message[QP_ERROR_SIZE];
    _Alignas(CACHE_LINE) place places[]; /* [size] */
} group;

typedef struct shared_comm {
    comm comm;
    group *group;
    char *file;            /* the mapping that begins with the group; NULL: ranks are threads */
    size_t bytes;          /* of it */
    struct comm *messages; /* of processes: how they found each other */
} shared_comm;

static group *group_of(const comm *c)
{
    return ((const shared_comm *)c)->group;
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

/* ---- exchanges ----------------------------------------------------------------------------- */

static stage *stage_of(const comm *c, int rank)
{
    return &group_of(c)->places[rank].stages[c->number % STAGES];
}

static size_t group_bytes(int size)
{
    const size_t bytes = sizeof(group) + (size_t)size * sizeof(place), page = 4096;
    return (bytes + page - 1) / page * page;
}

/* What all ranks have in common follows the stages. */
static size_t file_bytes(int size)
{
    return group_bytes(size) + (size_t)size * STAGES * FILE_STAGE + COMM_COMMON;
}

static char *common_of(const comm *c)
{
    const shared_comm *s = (const shared_comm *)c;
    return s->file ? s->file + s->bytes - COMM_COMMON : s->group->common;
}

/* A rank's stage in this process. */
static void *memory_of(const comm *c, int rank)
{
    const char *file = ((const shared_comm *)c)->file;
    if (!file) return stage_of(c, rank)->memory;
    const size_t number = (size_t)rank * STAGES + c->number % STAGES;
    return (void *)(uintptr_t)(file + group_bytes(c->size) + number * FILE_STAGE);
}

static bool grow(stage *s, size_t bytes)
{
    free(s->memory);
    s->capacity = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    s->memory = aligned_alloc(ALIGNMENT, s->capacity);
    if (!s->memory) s->capacity = 0;
    return s->memory != NULL;
}

static void *take_stage(comm *c, size_t bytes)
{
    stage *s = stage_of(c, c->rank);
    const bool in_file = ((shared_comm *)c)->file != NULL;
    if (in_file ? bytes <= FILE_STAGE : (s->memory && bytes <= s->capacity) || grow(s, bytes))
        return memory_of(c, c->rank);
    comm_abort(c, in_file ? "more than a gigabyte in one exchange is too much"
                          : "there is no memory for what ranks exchange");
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
        c->parts[r] = (comm_part){memory_of(c, r), s->bytes};
        if (s->tag == tag) continue;
        comm_fail_apart(c, r, tag, s->tag);
        return false;
    }
    return true;
}

/* ---- closing ------------------------------------------------------------------------------- */

static void free_group(group *g, int size)
{
    for (int r = 0; r < size; r++)
        for (int i = 0; i < STAGES; i++)
            free(g->places[r].stages[i].memory);
    if (g->common) munmap(g->common, COMM_COMMON);
    free(g);
}

/* The last thread to close frees what is shared. After a failure messages that found the ranks stay
 * open, because closing them would wait for ranks that have ended. */
static void close_end(comm *c)
{
    shared_comm *s = (shared_comm *)c;
    const bool ended = failed(c, NULL);
    if (s->file)
        munmap(s->file, s->bytes);
    else if (atomic_fetch_sub(&s->group->n_open, 1) == 1)
        free_group(s->group, c->size);
    if (s->messages && !ended) comm_close(s->messages);
    free(s);
}

static const comm_type shared_type = {.exchange = exchange,
                                      .stage = take_stage,
                                      .common = common_of,
                                      .failed = failed,
                                      .fail = fail,
                                      .close = close_end};

static shared_comm *make_end(group *g, int rank, int size)
{
    shared_comm *s = calloc(1, sizeof *s);
    comm_part *parts = calloc((size_t)size, sizeof *parts);
    if (!s || !parts) {
        free(s);
        free(parts);
        return NULL;
    }
    s->comm = (comm){.type = &shared_type, .rank = rank, .size = size, .parts = parts};
    s->group = g;
    return s;
}

/* ---- threads ------------------------------------------------------------------------------- */

static group *make_group(int size)
{
    const size_t bytes = group_bytes(size);
    group *g = aligned_alloc(CACHE_LINE, bytes);
    if (!g) return NULL;
    memset(g, 0, bytes);
    atomic_flag_clear(&g->failing);
    atomic_init(&g->n_open, 1); /* held by comm_threads_open() */
    void *common = mmap(NULL, COMM_COMMON, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g->common = common == MAP_FAILED ? NULL : common;
    return g;
}

qp_status comm_threads_open(int size, comm **ends, qp_error *error)
{
    memset(ends, 0, (size_t)size * sizeof *ends);
    group *g = make_group(size);
    bool enough = g != NULL;
    for (int r = 0; enough && r < size; r++) {
        shared_comm *end = make_end(g, r, size);
        enough = end != NULL;
        if (!enough) break;
        atomic_fetch_add(&g->n_open, 1);
        ends[r] = &end->comm;
    }
    for (int r = 0; !enough && r < size; r++) {
        comm_close(ends[r]);
        ends[r] = NULL;
    }
    if (g && atomic_fetch_sub(&g->n_open, 1) == 1) free_group(g, size);
    return enough ? QP_OK
                  : error_no_memory(error, "a group of ranks", (size_t)size * sizeof(place));
}

/* ---- processes ----------------------------------------------------------------------------- */

/* What ranks tell each other: where the first one's file is, and whether they have it. */
typedef struct file_offer {
    uint64_t key;
    int32_t process, file;
    int32_t has; /* the file, or no objection to one */
} file_offer;

/* Makes or opens the file. *descriptor: of it, or -1. */
static void *map_file(const file_offer *offer, bool first, size_t bytes, int *descriptor)
{
    struct stat about;
    /* On another host the process may be any other program. */
    *descriptor = first ? platform_memory_file(FILE_NAME, bytes)
                        : platform_memory_file_of(offer->process, offer->file, FILE_NAME);
    if (*descriptor < 0 || fstat(*descriptor, &about) != 0 || about.st_size != (off_t)bytes)
        return NULL;
    void *found =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *descriptor, 0);
    if (found == MAP_FAILED) return NULL;
    group *g = found;
    if (first) {
        atomic_flag_clear(&g->failing);
        g->key = offer->key;
    }
    if (g->key == offer->key) return found;
    munmap(found, bytes); /* of another host's process with the same number */
    return NULL;
}

/* Gives an offer; *first: that of the first rank. 1: all ranks have what it is about; 0: not all;
 * -1: the group has failed. */
static int agree(comm *c, const file_offer *own, file_offer *first)
{
    file_offer *stage = comm_stage(c, sizeof *own);
    if (!stage) return -1;
    *stage = *own;
    const comm_part *parts = comm_exchange(c, TAG_SHARE, sizeof *own, sizeof *own, COMM_SLOW);
    int all = parts ? 1 : -1;
    if (parts) memcpy(first, parts[0].data, sizeof *first);
    for (int r = 0; parts && r < c->size; r++) {
        file_offer other;
        memcpy(&other, parts[r].data, sizeof other);
        if (!other.has) all = 0;
    }
    return all;
}

comm *comm_share(comm *c, bool wanted)
{
    const size_t bytes = file_bytes(c->size);
    const bool first = c->rank == 0;
    file_offer own = {.key = clock_ns() ^ (uint64_t)getpid() << 40, .process = getpid()}, offer;
    int file = -1, ignored = -1;
    void *mapped = first && wanted ? map_file(&own, true, bytes, &file) : NULL;
    own.file = file;
    own.has = wanted && (!first || mapped);
    bool all = agree(c, &own, &offer) == 1;
    if (all && !first) mapped = map_file(&offer, false, bytes, &ignored);
    shared_comm *end = mapped ? make_end(mapped, c->rank, c->size) : NULL;
    own.has = end != NULL;
    all = all && agree(c, &own, &offer) == 1;
    if (file >= 0) close(file);
    if (ignored >= 0) close(ignored);
    if (all) {
        end->file = mapped;
        end->bytes = bytes;
        end->messages = c;
        return &end->comm;
    }
    if (mapped) munmap(mapped, bytes);
    if (end) free(end->comm.parts);
    free(end);
    return c;
}
