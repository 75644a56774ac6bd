/* Ranks that are processes: messages by MPI, of one process to each other one.
 *
 * Open MPI is opened at run time, as CUDA's driver is, so that the program also runs where it is
 * not installed. The declarations below are those of its interface of version 3 and later (its
 * library libmpi.so.40): handles are pointers, and communicators and types are objects of the
 * library.
 *
 * One thread at a time calls MPI. It never blocks there, because a rank that has died would block
 * it for ever: messages are started, and asked for in a loop with a time limit.
 */
#include "comm/comm_parts.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, TAG = 77, MPI_SUCCESS = 0, MPI_THREAD_SERIALIZED = 2 };

typedef void *mpi_handle;

typedef struct mpi_library {
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*finalize)(void);
    int (*comm_rank)(mpi_handle comm, int *rank);
    int (*comm_size)(mpi_handle comm, int *size);
    int (*comm_set_errhandler)(mpi_handle comm, mpi_handle handler);
    int (*isend)(const void *data, int count, mpi_handle type, int to, int tag, mpi_handle comm,
                 mpi_handle *request);
    int (*irecv)(void *data, int count, mpi_handle type, int from, int tag, mpi_handle comm,
                 mpi_handle *request);
    int (*test)(mpi_handle *request, int *done, void *status);
    mpi_handle world, byte, errors_return;
} mpi_library;

/* What every message begins with. */
typedef struct mpi_header {
    uint64_t bytes; /* of what follows */
    uint32_t tag, number;
    int32_t failed; /* what follows is a message for people */
    char room[ALIGNMENT - 20];
} mpi_header;

typedef struct mpi_buffer {
    char *memory; /* a header, and what follows it */
    size_t capacity;
} mpi_buffer;

typedef struct mpi_comm {
    comm comm;
    mpi_library mpi;
    mpi_buffer stages[2];            /* used in turn: the last may still be sent */
    mpi_buffer *received;            /* [2][size] */
    mpi_handle *sending, *receiving; /* [size] */
    mpi_buffer farewell;             /* what fail() has sent */
    bool failed;
    char message[QP_ERROR_SIZE];
} mpi_comm;

/* ---- the library --------------------------------------------------------------------------- */

static bool find_functions(void *library, mpi_library *out)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {{"MPI_Init_thread", &out->init_thread},
                     {"MPI_Finalize", &out->finalize},
                     {"MPI_Comm_rank", &out->comm_rank},
                     {"MPI_Comm_size", &out->comm_size},
                     {"MPI_Comm_set_errhandler", &out->comm_set_errhandler},
                     {"MPI_Isend", &out->isend},
                     {"MPI_Irecv", &out->irecv},
                     {"MPI_Test", &out->test},
                     {"ompi_mpi_comm_world", &out->world},
                     {"ompi_mpi_byte", &out->byte},
                     {"ompi_mpi_errors_return", &out->errors_return}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found) return false;
        memcpy(functions[i].to, &found, sizeof found);
    }
    return true;
}

/* Its own parts find its symbols only if they are global. */
static qp_status open_library(mpi_library *out, qp_error *error)
{
    static const char *const names[] = {"libmpi.so.40", "libmpi.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (library && find_functions(library, out)) return QP_OK;
    }
    return error_set(error, QP_UNSUPPORTED,
                     "ranks by MPI need Open MPI's library libmpi.so.40, which is not installed "
                     "(Debian: openmpi-bin); without it ranks are threads of one process");
}

/* ---- messages ------------------------------------------------------------------------------ */

static mpi_comm *of(const comm *c)
{
    return (mpi_comm *)(uintptr_t)c;
}

static bool reserve(mpi_buffer *b, size_t bytes)
{
    const size_t wanted = (bytes + sizeof(mpi_header) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (b->capacity >= wanted) return true;
    free(b->memory);
    b->memory = aligned_alloc(ALIGNMENT, wanted);
    b->capacity = b->memory ? wanted : 0;
    return b->memory != NULL;
}

static void remember(mpi_comm *m, const char *message)
{
    if (m->failed) return;
    snprintf(m->message, sizeof m->message, "%s", message);
    m->failed = true;
}

static bool failed(const comm *c, const char **message)
{
    if (message) *message = of(c)->message;
    return of(c)->failed;
}

/* Tells the others in place of the next exchange, without waiting for them. */
static void fail(comm *c, const char *message)
{
    mpi_comm *m = of(c);
    remember(m, message);
    mpi_buffer *b = &m->farewell;
    const size_t length = strlen(message) + 1;
    if (b->memory || !reserve(b, length)) return;
    *(mpi_header *)b->memory = (mpi_header){.bytes = length, .number = c->number, .failed = 1};
    memcpy(b->memory + sizeof(mpi_header), message, length);
    for (int r = 0; r < c->size; r++) {
        mpi_handle request;
        int done;
        if (r == c->rank) continue;
        if (m->mpi.isend(b->memory, (int)(sizeof(mpi_header) + length), m->mpi.byte, r, TAG,
                         m->mpi.world, &request) == MPI_SUCCESS)
            m->mpi.test(&request, &done, NULL);
    }
}

static void *take_stage(comm *c, size_t bytes)
{
    mpi_buffer *b = &of(c)->stages[c->number % 2];
    if (reserve(b, bytes)) return b->memory + sizeof(mpi_header);
    comm_abort(c, "there is no memory for what ranks exchange");
    return NULL;
}

static bool start(mpi_comm *m, size_t bytes, size_t most)
{
    comm *c = &m->comm;
    if (most < QP_ERROR_SIZE) most = QP_ERROR_SIZE; /* room for a failure's message */
    const int count = (int)(sizeof(mpi_header) + bytes), room = (int)(sizeof(mpi_header) + most);
    for (int r = 0; r < c->size; r++) {
        mpi_buffer *into = &m->received[(c->number % 2) * (uint32_t)c->size + (uint32_t)r];
        if (r == c->rank) continue;
        if (!reserve(into, most)) return false;
        if (m->mpi.irecv(into->memory, room, m->mpi.byte, r, TAG, m->mpi.world, &m->receiving[r]) !=
                MPI_SUCCESS ||
            m->mpi.isend(m->stages[c->number % 2].memory, count, m->mpi.byte, r, TAG, m->mpi.world,
                         &m->sending[r]) != MPI_SUCCESS)
            return false;
    }
    return true;
}

/* Waits for one message. */
static bool await(mpi_comm *m, mpi_handle *request, int rank, comm_wait wait)
{
    comm_watch watch = comm_watch_begin(&m->comm, wait);
    for (;;) {
        int done = 0;
        if (m->mpi.test(request, &done, NULL) != MPI_SUCCESS) {
            char message[QP_ERROR_SIZE];
            snprintf(message, sizeof message,
                     "MPI has lost rank %d, or it sends what rank %d does "
                     "not expect",
                     rank, m->comm.rank);
            fail(&m->comm, message);
            return false;
        }
        if (done) return true;
        if (comm_watch_goes_on(&watch)) continue;
        comm_fail_late(&m->comm, rank, &watch);
        return false;
    }
}

static bool take(mpi_comm *m, int r, uint32_t tag)
{
    comm *c = &m->comm;
    const mpi_buffer *b = r == c->rank
                              ? &m->stages[c->number % 2]
                              : &m->received[(c->number % 2) * (uint32_t)c->size + (uint32_t)r];
    const mpi_header *header = (const void *)b->memory;
    c->parts[r] = (comm_part){b->memory + sizeof *header, header->bytes};
    if (header->failed) {
        remember(m, c->parts[r].data);
        return false;
    }
    if (header->tag == tag && header->number == c->number) return true;
    comm_fail_apart(c, r, tag, header->tag);
    return false;
}

static bool exchange(comm *c, uint32_t tag, size_t bytes, size_t most, comm_wait wait)
{
    mpi_comm *m = of(c);
    if (most > INT_MAX / 2) {
        comm_abort(c, "more than a gigabyte in one exchange is too much for MPI");
        return false;
    }
    if (!take_stage(c, bytes)) return false;
    *(mpi_header *)m->stages[c->number % 2].memory =
        (mpi_header){.bytes = bytes, .tag = tag, .number = c->number};
    if (!start(m, bytes, most)) {
        fail(c, "a message by MPI could not be started");
        return false;
    }
    for (int r = 0; r < c->size; r++)
        if ((r != c->rank && !await(m, &m->receiving[r], r, wait)) || !take(m, r, tag))
            return false;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && !await(m, &m->sending[r], r, wait)) return false;
    return true;
}

/* ---- opening and closing ------------------------------------------------------------------- */

/* After a failure messages may be under way, for which MPI_Finalize() would wait; mpirun ends the
 * job when this process ends. Their memory is kept. */
static void close_mpi(comm *c)
{
    mpi_comm *m = of(c);
    if (m->failed) return;
    m->mpi.finalize();
    for (int i = 0; i < 2; i++)
        free(m->stages[i].memory);
    for (int i = 0; m->received && i < 2 * c->size; i++)
        free(m->received[i].memory);
    free(m->received);
    free(m->sending);
    free(m->receiving);
    free(m);
}

static const comm_type mpi_type = {
    .exchange = exchange, .stage = take_stage, .failed = failed, .fail = fail, .close = close_mpi};

static qp_status open_world(mpi_comm *m, qp_error *error)
{
    int provided = 0;
    comm *c = &m->comm;
    if (m->mpi.init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_SERIALIZED)
        return error_set(error, QP_UNSUPPORTED,
                         "MPI does not let threads of a process take turns, as ranks need");
    m->mpi.comm_set_errhandler(m->mpi.world, m->mpi.errors_return);
    m->mpi.comm_rank(m->mpi.world, &c->rank);
    m->mpi.comm_size(m->mpi.world, &c->size);
    const size_t size = (size_t)c->size;
    c->parts = calloc(size, sizeof *c->parts);
    m->received = calloc(2 * size, sizeof *m->received);
    m->sending = calloc(size, sizeof *m->sending);
    m->receiving = calloc(size, sizeof *m->receiving);
    if (c->parts && m->received && m->sending && m->receiving) return QP_OK;
    return error_no_memory(error, "a group of ranks", size);
}

qp_status comm_mpi_open(bool shares, comm **out, qp_error *error)
{
    *out = NULL;
    mpi_comm *m = calloc(1, sizeof *m);
    if (!m) return error_no_memory(error, "a group of ranks", sizeof *m);
    m->comm.type = &mpi_type;
    qp_status status = open_library(&m->mpi, error);
    if (status == QP_OK) status = open_world(m, error);
    if (status == QP_OK)
        *out = comm_share(&m->comm, shares);
    else
        free(m);
    return status;
}
