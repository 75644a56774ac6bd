/* The ranks that an engine runs a model on: see ranks.h. */
#include "engine/ranks.h"

#include "base/option_world.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1024, TAG_GPUS = 0x67707573 };

static qp_status read_cut(const char *name, engine_ranks *out, qp_error *error)
{
    const bool reduce = name && strcmp(name, "reduce") == 0;
    out->cut = reduce ? PLAN_REDUCE : PLAN_GATHER;
    out->cut_chosen = name && strcmp(name, "auto") != 0;
    if (!out->cut_chosen || reduce || strcmp(name, "gather") == 0) return QP_OK;
    return error_set(error, QP_INVALID, "ranks cut a model by gather or reduce, found \"%s\"",
                     name);
}

/* Numbers of GPUs: "0,2". */
static qp_status read_gpus(const char *text, bool mpi, engine_ranks *out, qp_error *error)
{
    const char *at = text;
    while (at && *at) {
        char *end;
        const long number = strtol(at, &end, 10);
        const bool separated = *end == ',' && end[1] != 0;
        if (end == at || number < 0 || number > 1023 || (*end && !separated) ||
            out->n_numbers == EXCHANGE_RANKS)
            return error_set(error, QP_INVALID,
                             "GPUs are up to %d numbers from 0 on, separated by commas, as in 0,1; "
                             "found \"%.80s\"",
                             EXCHANGE_RANKS, text);
        out->numbers[out->n_numbers++] = (int)number;
        at = separated ? end + 1 : end;
    }
    if (out->n_numbers == 0 || mpi) return QP_OK;
    if (out->size != 1 && out->size != out->n_numbers)
        return error_set(error, QP_INVALID, "%d ranks need as many GPUs, but --gpus %s names %d",
                         out->size, text, out->n_numbers);
    out->size = out->n_numbers;
    return QP_OK;
}

bool engine_ranks_beside;

static qp_status read_exchange(const char *name, engine_ranks *out, qp_error *error)
{
    static const char *const names[] = {"auto", "peers", "nccl", "host"};
    out->exchange = CUDA_BY_AUTO;
    if (!name) return QP_OK;
    for (int by = CUDA_BY_AUTO; by <= CUDA_BY_HOST; by++) {
        const bool beside = by == CUDA_BY_PEERS && engine_ranks_beside;
        out->exchange = beside ? CUDA_BY_BESIDE : (cuda_exchange_by)by;
        if (strcmp(name, names[by]) == 0) return QP_OK;
    }
    return error_set(error, QP_INVALID,
                     "GPUs exchange rows by auto, peers, nccl or host, found \"%s\"", name);
}

qp_status engine_ranks_read_gpus(const char *gpus, const char *exchange, engine_ranks *out,
                                 qp_error *error)
{
    TRY(read_gpus(gpus, out->world != NULL, out, error));
    return read_exchange(exchange, out, error);
}

static qp_status open_world(int wanted, bool shares, engine_ranks *out, qp_error *error)
{
    TRY(comm_mpi_open(shares, &out->world, error));
    out->size = comm_size(out->world);
    if (wanted <= 1 || wanted == out->size) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%d ranks were asked for, but mpirun has started %d; give "
                     "both the same number",
                     wanted, out->size);
}

qp_status engine_ranks_open(const qp_engine_options *o, engine_ranks *out, qp_error *error)
{
    const bool messages = o->transport && strcmp(o->transport, "messages") == 0;
    const bool mpi = messages || (o->transport && strcmp(o->transport, "mpi") == 0);
    *out = (engine_ranks){.size = o->ranks > 0 ? o->ranks : 1};
    TRY(read_cut(o->cut, out, error));
    if (o->ranks < 0 || o->ranks > MOST_RANKS)
        return error_set(error, QP_INVALID, "there are 1 to %d ranks, found %d", MOST_RANKS,
                         o->ranks);
    if (o->transport && !mpi && strcmp(o->transport, "threads") != 0)
        return error_set(error, QP_INVALID, "ranks are threads, mpi or messages, found \"%s\"",
                         o->transport);
    if (mpi) TRY(open_world(o->ranks, !messages, out, error));
    return engine_ranks_read_gpus(o->gpus, o->exchange, out, error);
}

/* The GPU of a process, the `rank`-th of `size` on this host. All have the only one that is named.
 */
static qp_status number_of_process(const engine_ranks *r, int rank, int size, int *number,
                                   qp_error *error)
{
    int count;
    *number = r->n_numbers == 1 ? r->numbers[0]
              : r->n_numbers    ? r->numbers[rank % EXCHANGE_RANKS]
                                : rank;
    if (r->n_numbers > 1 && r->n_numbers < size)
        return error_set(error, QP_INVALID,
                         "%d ranks run on this host, but --gpus names %d GPUs: name one for each, "
                         "or one for all",
                         size, r->n_numbers);
    if (r->n_numbers) return QP_OK;
    TRY(cuda_device_count(&count, error));
    if (rank < count) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%d ranks run on this host, which has %d GPUs for this process: start fewer, "
                     "or name the GPUs with --gpus; --gpus 0 lets all ranks of a host share one",
                     size, count);
}

/* Processes choose together how they exchange rows. */
static qp_status meet(engine_ranks *r, cuda_device *own, qp_error *error)
{
    cuda_rank_facts *facts = comm_stage(r->world, sizeof *facts);
    if (!facts) return comm_check(r->world, error);
    TRY(cuda_ranks_describe(own, r->exchange, facts, error));
    const comm_part *parts =
        comm_exchange(r->world, TAG_GPUS, sizeof *facts, sizeof *facts, COMM_SLOW);
    if (!parts) return comm_check(r->world, error);
    facts = calloc((size_t)r->size, sizeof *facts);
    if (!facts) return error_no_memory(error, "ranks", (size_t)r->size * sizeof *facts);
    for (int rank = 0; rank < r->size; rank++)
        memcpy(&facts[rank], parts[rank].data, sizeof *facts);
    qp_status status = cuda_ranks_meet(r->gpus, own, facts, r->size, error);
    free(facts);
    return status;
}

qp_status engine_ranks_device(const engine_ranks *r, cuda_device *out, qp_error *error)
{
    int rank = 0, size = 1, number = 0;
    if (!r->world)
        return r->n_numbers ? cuda_device_open_number(out, r->numbers[0], error)
                            : cuda_device_open(out, error);
    option_world_host(&rank, &size);
    TRY(number_of_process(r, rank, size, &number, error));
    return cuda_device_open_number(out, number, error);
}

qp_status engine_ranks_connect(engine_ranks *r, cuda_device *first, qp_error *error)
{
    if (r->size == 1) return QP_OK;
    if (!r->cut_chosen) r->cut = PLAN_REDUCE;
    r->gpus = calloc(1, sizeof *r->gpus);
    if (!r->gpus) return error_no_memory(error, "ranks", sizeof *r->gpus);
    if (r->world) return meet(r, first, error);
    return cuda_ranks_open(r->gpus, first, r->n_numbers ? r->numbers : NULL, r->size, r->exchange,
                           error);
}

void engine_ranks_close(engine_ranks *ranks)
{
    if (ranks->gpus) cuda_ranks_close(ranks->gpus);
    free(ranks->gpus);
    comm_close(ranks->world);
    *ranks = (engine_ranks){.size = 1};
}

void engine_ranks_abort(const engine_ranks *ranks, const char *why)
{
    if (ranks->world) comm_abort(ranks->world, why);
}

int engine_ranks_threads(const engine_ranks *ranks)
{
    int rank = 0, size = ranks->size;
    if (ranks->world) option_world_host(&rank, &size);
    if (ranks->world && threads_bound_by_parent()) return threads_available();
    const int each = threads_available() / size;
    return each > 0 ? each : 1;
}

void engine_ranks_bind(const engine_ranks *ranks, int threads)
{
    int rank, size;
    if (!ranks->world || threads_bound_by_parent()) return;
    option_world_host(&rank, &size);
    threads_bind(rank, size - 1, threads);
}

int qp_rank(void)
{
    int rank, size;
    return option_world(&rank, &size) ? rank : -1;
}
