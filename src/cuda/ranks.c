/* The GPUs of one host as ranks: see cuda/ranks.h. */
#include "cuda/ranks.h"

#include "cuda/exchange_sums.h"
#include "cuda/nccl.h"

#include <string.h>

enum {
    FAILURE_BYTES = 128, /* from rank to rank: a cache line that no other rank writes */
};

static size_t rounds_bytes(void)
{
    return exchange_all_counters() * sizeof(uint32_t);
}

size_t cuda_ranks_bytes(int n)
{
    return n > 1 ? exchange_buffer_bytes(n) + rounds_bytes() : 0;
}

static exchange_failure *failure_of(const cuda_ranks *r, int rank)
{
    return (exchange_failure *)((char *)r->failures.data + (size_t)rank * FAILURE_BYTES);
}

/* Ranks that share a GPU do not exchange by kernels: one of them waits in a kernel for another,
 * whose code may only be loaded when nothing runs there. Neither does NCCL. */
static qp_status check_alone(const cuda_ranks *r, qp_error *error)
{
    for (int rank = 1; rank < r->n; rank++)
        for (int other = 0; other < rank; other++)
            if (r->devices[other]->ordinal == r->devices[rank]->ordinal)
                return error_set(error, QP_INVALID,
                                 "ranks %d and %d would run on GPU %d both: each rank needs a GPU "
                                 "of its own, or --exchange host; name as many GPUs as there are "
                                 "ranks with --gpus",
                                 other, rank, r->devices[rank]->ordinal);
    return QP_OK;
}

int cuda_ranks_beside(const cuda_ranks *r)
{
    int most = 0;
    for (int rank = 0; rank < r->n; rank++) {
        int n = 0;
        for (int other = 0; other < r->n; other++)
            n += r->devices[other]->ordinal == r->devices[rank]->ordinal;
        if (n > most) most = n;
    }
    return most;
}

static bool all_reach(const cuda_ranks *r)
{
    cuda_link link;
    for (int rank = 0; rank < r->n; rank++)
        for (int peer = 0; peer < r->n; peer++)
            if (rank != peer &&
                (cuda_device_link(r->devices[rank], r->devices[peer], &link, NULL) != QP_OK ||
                 !link.direct))
                return false;
    return true;
}

static qp_status choose_exchange(cuda_ranks *r, cuda_exchange_by by, qp_error *error)
{
    int version;
    const bool alone = check_alone(r, NULL) == QP_OK;
    r->by = by == CUDA_BY_BESIDE ? CUDA_BY_PEERS : by;
    if (by == CUDA_BY_PEERS || by == CUDA_BY_NCCL) TRY(check_alone(r, error));
    if (by == CUDA_BY_NCCL) TRY(nccl_version(&version, error));
    if (by != CUDA_BY_AUTO) return QP_OK;
    r->by = !alone                                  ? CUDA_BY_HOST
            : all_reach(r)                          ? CUDA_BY_PEERS
            : nccl_version(&version, NULL) == QP_OK ? CUDA_BY_NCCL
                                                    : CUDA_BY_HOST;
    return QP_OK;
}

static qp_status open_devices(cuda_ranks *r, const int *gpus, qp_error *error)
{
    int count;
    TRY(cuda_device_count(&count, error));
    if (!gpus && r->devices[0]->ordinal + r->n > count)
        return error_set(error, QP_INVALID,
                         "%d ranks need %d GPUs from number %d on, but this machine has %d: take "
                         "fewer ranks, or name the GPUs with --gpus",
                         r->n, r->n, r->devices[0]->ordinal, count);
    for (int rank = 1; rank < r->n; rank++) {
        const int number = gpus ? gpus[rank] : r->devices[0]->ordinal + rank;
        r->devices[rank] = &r->own[rank];
        TRY(cuda_device_open_number(r->devices[rank], number, error));
    }
    return QP_OK;
}

static qp_status connect(cuda_ranks *r, int rank, qp_error *error)
{
    const cuda_device *d = r->devices[rank];
    for (int peer = 0; peer < r->n; peer++)
        if (peer != rank) TRY(cuda_device_reach(d, r->devices[peer], error));
    TRY(cuda_buffer_alloc(d, exchange_buffer_bytes(r->n), "the exchange between ranks",
                          &r->receive[rank], error));
    TRY(cuda_buffer_alloc(d, rounds_bytes(), "the exchange between ranks", &r->rounds[rank],
                          error));
    return cuda_device_wait(d, "preparing the exchange between ranks", error);
}

static void describe(cuda_ranks *r, int rank)
{
    exchange *e = &r->exchanges[rank];
    *e = (exchange){.rounds = r->rounds[rank].address,
                    .failure = r->failures.address + (size_t)rank * FAILURE_BYTES,
                    .limit_ns = CUDA_RANKS_LIMIT_NS,
                    .rank = rank,
                    .n_ranks = r->n};
    for (int peer = 0; peer < r->n; peer++)
        e->receive[peer] = r->receive[peer].address;
}

/* ---- processes ----------------------------------------------------------------------------- */

qp_status cuda_ranks_describe(const cuda_device *device, cuda_exchange_by by, cuda_rank_facts *out,
                              qp_error *error)
{
    int version = 0;
    *out = (cuda_rank_facts){.by = (int32_t)by};
    if (by == CUDA_BY_PEERS)
        return error_set(error, QP_UNSUPPORTED,
                         "kernels write to the memory of GPUs of their own process, and ranks by "
                         "MPI are processes: use --exchange nccl or host, or --ranks-by threads");
    if (by == CUDA_BY_NCCL) TRY(nccl_version(&version, error));
    if (by == CUDA_BY_AUTO) nccl_version(&version, NULL);
    out->nccl = version;
    return cuda_device_uuid(device, out->uuid, error);
}

/* Whether NCCL can exchange their rows. */
static qp_status check_nccl(const cuda_rank_facts *facts, int n, qp_error *error)
{
    char text[2][NCCL_VERSION_TEXT];
    for (int rank = 0; rank < n; rank++) {
        const int32_t own = facts[rank].nccl, first = facts[0].nccl;
        if (own == first && own != 0) continue;
        if (own == 0)
            return error_set(error, QP_UNSUPPORTED,
                             "rank %d has no NCCL (libnccl.so.2): install it there, or use "
                             "--exchange host",
                             rank);
        return error_set(error, QP_UNSUPPORTED,
                         "rank %d has NCCL %s and rank 0 has %s: install the same version on all "
                         "hosts, or use --exchange host",
                         rank, nccl_version_text(own, text[0]), nccl_version_text(first, text[1]));
    }
    for (int rank = 1; rank < n; rank++)
        for (int other = 0; other < rank; other++)
            if (memcmp(facts[rank].uuid, facts[other].uuid, CUDA_UUID_BYTES) == 0)
                return error_set(error, QP_INVALID,
                                 "ranks %d and %d have the same GPU, and NCCL needs one for each: "
                                 "name others with --gpus, or use --exchange host",
                                 other, rank);
    return QP_OK;
}

qp_status cuda_ranks_meet(cuda_ranks *r, cuda_device *first, const cuda_rank_facts *facts, int n,
                          qp_error *error)
{
    *r = (cuda_ranks){.n = n, .apart = true, .devices = {first}};
    for (int rank = 1; rank < n; rank++)
        if (facts[rank].by != facts[0].by)
            return error_set(error, QP_INVALID,
                             "rank %d has another --exchange than rank 0: all ranks must have the "
                             "same options",
                             rank);
    r->by = (cuda_exchange_by)facts[0].by;
    if (r->by == CUDA_BY_NCCL) return check_nccl(facts, n, error);
    if (r->by == CUDA_BY_AUTO)
        r->by = check_nccl(facts, n, NULL) == QP_OK ? CUDA_BY_NCCL : CUDA_BY_HOST;
    return QP_OK;
}

qp_status cuda_ranks_open(cuda_ranks *r, cuda_device *first, const int *gpus, int n,
                          cuda_exchange_by by, qp_error *error)
{
    *r = (cuda_ranks){0};
    if (n > EXCHANGE_RANKS)
        return error_set(error, QP_UNSUPPORTED, "GPUs run up to %d ranks, found %d", EXCHANGE_RANKS,
                         n);
    r->n = n;
    r->devices[0] = first;
    TRY(open_devices(r, gpus, error));
    TRY(choose_exchange(r, by, error));
    if (r->by != CUDA_BY_PEERS) return cuda_device_enter(first, error);
    TRY(cuda_pinned_alloc(first, (size_t)n * FAILURE_BYTES, "the exchange between ranks",
                          &r->failures, error));
    for (int rank = 0; rank < n; rank++)
        TRY(connect(r, rank, error));
    for (int rank = 0; rank < n; rank++)
        describe(r, rank);
    return cuda_device_enter(first, error);
}

void cuda_ranks_close(cuda_ranks *r)
{
    if (r->n == 0 || r->apart) return;
    for (int rank = 0; rank < r->n; rank++) {
        const cuda_device *d = r->devices[rank];
        if (!d || !d->context) continue;
        d->driver->context_set(d->context);
        cuda_buffer_free(d, &r->receive[rank]);
        cuda_buffer_free(d, &r->rounds[rank]);
    }
    r->devices[0]->driver->context_set(r->devices[0]->context);
    cuda_pinned_free(r->devices[0], &r->failures);
    for (int rank = 1; rank < r->n; rank++)
        cuda_device_close(&r->own[rank]);
    r->devices[0]->driver->context_set(r->devices[0]->context);
    *r = (cuda_ranks){0};
}

qp_status cuda_ranks_check(const cuda_ranks *r, qp_error *error)
{
    for (int rank = 0; rank < r->n; rank++) {
        const exchange_failure f = *(volatile exchange_failure *)failure_of(r, rank);
        if (!f.failed) continue;
        return error_set(error, QP_DEVICE,
                         "rank %d (GPU %d) waited %.0f s for rows of rank %u (GPU %d): block %u "
                         "expected round %u and found %u. Open the model again; if it happens "
                         "again, please report it",
                         rank, r->devices[rank]->ordinal, (double)CUDA_RANKS_LIMIT_NS * 1e-9,
                         f.from, r->devices[f.from % (unsigned)r->n]->ordinal, f.block, f.expected,
                         f.found);
    }
    return QP_OK;
}
