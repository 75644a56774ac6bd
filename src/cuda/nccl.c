/* NCCL, opened at run time: see cuda/nccl.h. Its declarations are those of its interface of version
 * 2, which has been stable: handles are pointers, and the id of a group is passed by value. */
#include "cuda/nccl.h"

#include "base/clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { /* ncclDataType_t, ncclRedOp_t, ncclResult_t */
       NCCL_UINT32 = 3,
       NCCL_FLOAT32 = 7,
       NCCL_ADD = 0,
       NCCL_SUCCESS = 0,
       NCCL_IN_PROGRESS = 7,
};
enum {
    OPEN_SECONDS = 60,
    STUCK_SECONDS = 3,
    CLOSE_SECONDS = 2,
    LOOK_MS = 20,
    MARKED_BYTES = 1 << 20, /* larger sums tell the watching thread that they have ended */
};
static const uint64_t SECOND_NS = 1000000000;

typedef struct nccl_id {
    char bytes[NCCL_ID_BYTES];
} nccl_id;

typedef struct ncclComm *nccl_handle;

typedef struct nccl_library {
    int (*get_version)(int *version);
    int (*get_unique_id)(nccl_id *id);
    int (*comm_init_rank)(nccl_handle *comm, int size, nccl_id id, int rank);
    int (*comm_get_async_error)(nccl_handle comm, int *result);
    int (*comm_abort)(nccl_handle comm);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int operation,
                      nccl_handle comm, cuda_stream stream);
    const char *(*get_error_string)(int result);
    const char *(*get_last_error)(nccl_handle comm);
} nccl_library;

struct nccl_group {
    const cuda_device *device;
    nccl_handle handle;
    nccl_id id;
    int rank, size;
    nccl_others_failed *others_failed;
    const void *context;
    cuda_pinned mark; /* a byte that changes when a large sum has ended */
    unsigned char n_marks;
    atomic_int under_way; /* runs */
    atomic_uint steps;    /* what this rank's program has done */
    atomic_bool opened, stops, ended, failed;
    char message[QP_ERROR_SIZE];
};

/* ---- the library --------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    nccl_library of;
    int version;
    qp_error error;
} loaded = {.once = PTHREAD_ONCE_INIT};

static const char *find_functions(void *library, nccl_library *out)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {{"ncclGetVersion", &out->get_version},
                     {"ncclGetUniqueId", &out->get_unique_id},
                     {"ncclCommInitRank", &out->comm_init_rank},
                     {"ncclCommGetAsyncError", &out->comm_get_async_error},
                     {"ncclCommAbort", &out->comm_abort},
                     {"ncclAllReduce", &out->all_reduce},
                     {"ncclGetErrorString", &out->get_error_string},
                     {"ncclGetLastError", &out->get_last_error}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found) return functions[i].name;
        memcpy(functions[i].to, &found, sizeof found);
    }
    return NULL;
}

static qp_status explain(int result, nccl_handle handle, const char *operation, qp_error *error)
{
    if (result == NCCL_SUCCESS) return QP_OK;
    const char *last = loaded.of.get_last_error(handle);
    return error_set(error, QP_DEVICE,
                     "%s failed: NCCL says \"%s\"%s%.300s; NCCL_DEBUG=INFO says "
                     "more, and --exchange host does without NCCL",
                     operation, loaded.of.get_error_string(result), last && *last ? ": " : "",
                     last ? last : "");
}

/* NVLink multicast stays off: quipu's own kernels do not use it either. */
static qp_status load(qp_error *error)
{
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(error, QP_UNSUPPORTED,
                         "NCCL's library libnccl.so.2 cannot be loaded: install it (Debian and "
                         "NVIDIA: libnccl2), or name its folder in LD_LIBRARY_PATH; --exchange "
                         "host does without it");
    const char *missing = find_functions(library, &loaded.of);
    if (missing)
        return error_set(error, QP_UNSUPPORTED,
                         "NCCL's library libnccl.so.2 lacks %s: version 2.13 or newer is needed; "
                         "--exchange host does without it",
                         missing);
    return explain(loaded.of.get_version(&loaded.version), NULL, "reading NCCL's version", error);
}

static void load_once(void)
{
    loaded.error.status = load(&loaded.error);
}

qp_status nccl_version(int *version, qp_error *error)
{
    pthread_once(&loaded.once, load_once);
    *version = loaded.error.status == QP_OK ? loaded.version : 0;
    if (loaded.error.status == QP_OK) return QP_OK;
    return error_set(error, loaded.error.status, "%s", loaded.error.message);
}

const char *nccl_version_text(int version, char text[NCCL_VERSION_TEXT])
{
    snprintf(text, NCCL_VERSION_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return text;
}

qp_status nccl_make_id(char id[NCCL_ID_BYTES], qp_error *error)
{
    int version;
    nccl_id made;
    TRY(nccl_version(&version, error));
    TRY(explain(loaded.of.get_unique_id(&made), NULL, "beginning a group of GPUs", error));
    memcpy(id, made.bytes, sizeof made.bytes);
    return QP_OK;
}

/* ---- the group's thread -------------------------------------------------------------------- */

static void fail(nccl_group *g, const char *message)
{
    snprintf(g->message, sizeof g->message, "%s", message);
    atomic_store(&g->failed, true);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* What changes as long as the ranks make progress. */
static uint64_t progress_of(nccl_group *g)
{
    return (uint64_t)atomic_load(&g->steps) << 8 | *(volatile unsigned char *)g->mark.data;
}

/* Whether the group cannot go on; says why. `since`: how long nothing has changed. */
static bool is_lost(nccl_group *g, uint64_t since)
{
    qp_error why = {0};
    char message[QP_ERROR_SIZE];
    int result = NCCL_SUCCESS;
    loaded.of.comm_get_async_error(g->handle, &result);
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) {
        explain(result, g->handle, "an exchange between GPUs", &why);
        fail(g, why.message);
        return true;
    }
    if (g->others_failed(g->context)) {
        fail(g, "another rank has ended");
        return true;
    }
    if (atomic_load(&g->under_way) == 0 || since < STUCK_SECONDS * SECOND_NS ||
        g->device->driver->stream_query(g->device->stream) != CUDA_NOT_READY)
        return false;
    snprintf(message, sizeof message,
             "rank %d (GPU %d) has waited %d seconds for an exchange of NCCL: another rank has "
             "ended, or hangs",
             g->rank, g->device->ordinal, STUCK_SECONDS);
    fail(g, message);
    return true;
}

static void watch(nccl_group *g)
{
    uint64_t last = progress_of(g), changed = clock_ns();
    while (!atomic_load(&g->stops)) {
        const uint64_t now = clock_ns(), progress = progress_of(g);
        if (progress != last || atomic_load(&g->under_way) == 0) changed = now;
        last = progress;
        if (is_lost(g, now - changed)) return;
        sleep_ms(LOOK_MS);
    }
}

/* Opening waits for the other ranks, and ending for the graphs that use the group. */
static void *live(void *context)
{
    nccl_group *g = context;
    qp_error why = {0};
    qp_status status = cuda_device_enter(g->device, &why);
    if (status == QP_OK)
        status = explain(loaded.of.comm_init_rank(&g->handle, g->size, g->id, g->rank), NULL,
                         "opening a group of GPUs", &why);
    if (status != QP_OK) fail(g, why.message);
    atomic_store(&g->opened, true);
    if (status == QP_OK) {
        watch(g);
        loaded.of.comm_abort(g->handle);
    }
    atomic_store(&g->ended, true);
    return NULL;
}

/* Waits for a flag that the thread sets. */
static bool await(nccl_group *g, const atomic_bool *flag, int seconds, bool with_others)
{
    const uint64_t begin = clock_ns();
    while (!atomic_load(flag)) {
        if (clock_ns() - begin > (uint64_t)seconds * SECOND_NS) return false;
        if (with_others && g->others_failed(g->context)) return false;
        sleep_ms(1);
    }
    return true;
}

/* ---- groups -------------------------------------------------------------------------------- */

static qp_status start(nccl_group *g, qp_error *error)
{
    pthread_t thread;
    TRY(cuda_pinned_alloc(g->device, 1, "the exchange between ranks", &g->mark, error));
    if (pthread_create(&thread, NULL, live, g) != 0) {
        atomic_store(&g->ended, true);
        return error_set(error, QP_IO, "a thread for NCCL could not be started");
    }
    pthread_detach(thread);
    if (!await(g, &g->opened, OPEN_SECONDS, true))
        return error_set(error, QP_DEVICE,
                         "NCCL has not connected the GPUs of %d ranks within %d seconds, or one of "
                         "them has ended: NCCL_DEBUG=INFO says what it waits for, "
                         "NCCL_SOCKET_IFNAME names the network to use",
                         g->size, OPEN_SECONDS);
    return nccl_check(g, error);
}

qp_status nccl_open(const cuda_device *device, const char id[NCCL_ID_BYTES], int rank, int size,
                    nccl_others_failed *others_failed, const void *context, nccl_group **out,
                    qp_error *error)
{
    int version;
    nccl_group *g = *out = calloc(1, sizeof *g);
    if (!g) return error_no_memory(error, "a group of GPUs", sizeof *g);
    g->device = device;
    g->rank = rank;
    g->size = size;
    g->others_failed = others_failed;
    g->context = context;
    memcpy(g->id.bytes, id, sizeof g->id.bytes);
    qp_status status = nccl_version(&version, error);
    if (status == QP_OK) return start(g, error);
    atomic_store(&g->ended, true);
    return status;
}

/* If the thread is stuck in NCCL, what it uses is left to it. */
void nccl_close(nccl_group *g)
{
    if (!g) return;
    atomic_store(&g->stops, true);
    if (!await(g, &g->ended, CLOSE_SECONDS, false)) return;
    cuda_pinned_free(g->device, &g->mark);
    free(g);
}

qp_status nccl_sum(nccl_group *g, cuda_address from, cuda_address to, size_t count,
                   nccl_elements elements, qp_error *error)
{
    TRY(nccl_check(g, error));
    atomic_fetch_add(&g->steps, 1);
    TRY(explain(loaded.of.all_reduce((const void *)(uintptr_t)from, (void *)(uintptr_t)to, count,
                                     elements == NCCL_WORDS ? NCCL_UINT32 : NCCL_FLOAT32, NCCL_ADD,
                                     g->handle, g->device->stream),
                g->handle, "an exchange between GPUs", error));
    if (count * sizeof(float) < MARKED_BYTES) return QP_OK;
    return cuda_check(
        g->device->driver->memory_set(g->mark.address, ++g->n_marks, 1, g->device->stream),
        "an exchange between GPUs", error);
}

void nccl_begin(nccl_group *g)
{
    atomic_fetch_add(&g->steps, 1);
    atomic_fetch_add(&g->under_way, 1);
}

void nccl_end(nccl_group *g)
{
    atomic_fetch_add(&g->steps, 1);
    atomic_fetch_sub(&g->under_way, 1);
}

qp_status nccl_check(const nccl_group *g, qp_error *error)
{
    if (!atomic_load(&g->failed)) return QP_OK;
    return error_set(error, QP_DEVICE, "%s", g->message);
}
