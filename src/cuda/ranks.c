/* The GPUs of one host as ranks: see cuda/ranks.h. */
#include "cuda/ranks.h"

#include "cuda/exchange_chain.h"

enum {
    FAILURE_BYTES = 128, /* from rank to rank: a cache line that no other rank writes */
};

static size_t rounds_bytes(void)
{
    return exchange_all_counters() * sizeof(uint32_t);
}

size_t cuda_ranks_bytes(int n)
{
    return n > 1 ? exchange_all_bytes(n) + rounds_bytes() : 0;
}

static exchange_failure *failure_of(const cuda_ranks *r, int rank)
{
    return (exchange_failure *)((char *)r->failures.data + (size_t)rank * FAILURE_BYTES);
}

/* Ranks do not share a GPU: one of them waits in a kernel for another, whose code may only be
 * loaded when nothing runs there. */
static qp_status check_alone(const cuda_ranks *r, int rank, qp_error *error)
{
    for (int other = 0; other < rank; other++)
        if (r->devices[other]->ordinal == r->devices[rank]->ordinal)
            return error_set(error, QP_INVALID,
                             "ranks %d and %d would run on GPU %d both: each rank needs a GPU of "
                             "its own; name as many as there are ranks with --gpus",
                             other, rank, r->devices[rank]->ordinal);
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
        TRY(check_alone(r, rank, error));
    }
    return QP_OK;
}

static qp_status connect(cuda_ranks *r, int rank, qp_error *error)
{
    const cuda_device *d = r->devices[rank];
    for (int peer = 0; peer < r->n; peer++)
        if (peer != rank) TRY(cuda_device_reach(d, r->devices[peer], error));
    TRY(cuda_buffer_alloc(d, exchange_all_bytes(r->n), "the exchange between ranks",
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

qp_status cuda_ranks_open(cuda_ranks *r, cuda_device *first, const int *gpus, int n,
                          qp_error *error)
{
    *r = (cuda_ranks){0};
    if (n > EXCHANGE_RANKS)
        return error_set(error, QP_UNSUPPORTED, "GPUs run up to %d ranks, found %d", EXCHANGE_RANKS,
                         n);
    r->n = n;
    r->devices[0] = first;
    TRY(open_devices(r, gpus, error));
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
    if (r->n == 0) return;
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
