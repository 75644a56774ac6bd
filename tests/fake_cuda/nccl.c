/* NCCL where there is no GPU: every sum is this rank's own part. QUIPU_FAKE_NCCL_VERSION is the
 * version that it says it has; after sum QUIPU_FAKE_NCCL_STUCK the GPU waits until the group is
 * aborted; from sum QUIPU_FAKE_NCCL_FAILS on the group has an error. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* NCCL's header has them */

enum { REMOTE_ERROR = 6, ID_BYTES = 128 };

typedef struct id {
    char bytes[ID_BYTES];
} id;

struct ncclComm {
    int rank, size, n_sums;
};

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

EXPORT int ncclGetVersion(int *version)
{
    *version = number("QUIPU_FAKE_NCCL_VERSION", 22703);
    return 0;
}

EXPORT int ncclGetUniqueId(id *out)
{
    memset(out, 'q', sizeof *out);
    return 0;
}

EXPORT int ncclCommInitRank(struct ncclComm **out, int size, id of, int rank)
{
    *out = calloc(1, sizeof **out);
    **out = (struct ncclComm){.rank = rank, .size = size};
    fake_log("nccl rank %d of %d\n", rank, size);
    return of.bytes[ID_BYTES - 1] == 'q' ? 0 : 5; /* ncclInvalidUsage */
}

EXPORT int ncclCommGetAsyncError(struct ncclComm *comm, int *result)
{
    *result = comm->n_sums >= number("QUIPU_FAKE_NCCL_FAILS", 1 << 30) ? REMOTE_ERROR : 0;
    return 0;
}

EXPORT int ncclCommAbort(struct ncclComm *comm)
{
    fake_stuck(false);
    free(comm);
    return 0;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                         struct ncclComm *comm, cuda_stream stream)
{
    char name[48];
    fake_log("%snccl sum: %s, %zu elements of type %d, operation %d\n", fake_stream_mode(stream),
             fake_memory_name((uint64_t)to, name), count, type, operation);
    if (!*fake_stream_mode(stream)) memmove(to, from, count * sizeof(float));
    if (++comm->n_sums == number("QUIPU_FAKE_NCCL_STUCK", 1 << 30)) fake_stuck(true);
    return 0;
}

EXPORT const char *ncclGetErrorString(int result)
{
    return result == REMOTE_ERROR ? "remote process exited or there was a network error"
                                  : "no error";
}

EXPORT const char *ncclGetLastError(struct ncclComm *comm)
{
    (void)comm;
    return "";
}
