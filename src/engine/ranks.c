/* The ranks that an engine runs a model on: see ranks.h. */
#include "engine/ranks.h"

#include "base/option_world.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 1024 };

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
static qp_status read_gpus(const char *text, engine_ranks *out, qp_error *error)
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
    if (out->n_numbers == 0) return QP_OK;
    if (out->size != 1 && out->size != out->n_numbers)
        return error_set(error, QP_INVALID, "%d ranks need as many GPUs, but --gpus %s names %d",
                         out->size, text, out->n_numbers);
    out->size = out->n_numbers;
    return QP_OK;
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
    TRY(read_gpus(o->gpus, out, error));
    if (o->ranks < 0 || o->ranks > MOST_RANKS)
        return error_set(error, QP_INVALID, "there are 1 to %d ranks, found %d", MOST_RANKS,
                         o->ranks);
    if (o->transport && !mpi && strcmp(o->transport, "threads") != 0)
        return error_set(error, QP_INVALID, "ranks are threads, mpi or messages, found \"%s\"",
                         o->transport);
    return mpi ? open_world(o->ranks, !messages, out, error) : QP_OK;
}

qp_status engine_ranks_device(const engine_ranks *r, cuda_device *out, qp_error *error)
{
    return r->n_numbers ? cuda_device_open_number(out, r->numbers[0], error)
                        : cuda_device_open(out, error);
}

qp_status engine_ranks_connect(engine_ranks *r, cuda_device *first, qp_error *error)
{
    if (r->size == 1) return QP_OK;
    if (r->world)
        return error_set(error, QP_UNSUPPORTED,
                         "ranks that mpirun starts run on CPUs: use --device cpu, or --ranks-by "
                         "threads for the GPUs of this machine");
    if (!r->cut_chosen) r->cut = PLAN_REDUCE;
    r->gpus = calloc(1, sizeof *r->gpus);
    if (!r->gpus) return error_no_memory(error, "ranks", sizeof *r->gpus);
    return cuda_ranks_open(r->gpus, first, r->n_numbers ? r->numbers : NULL, r->size, error);
}

void engine_ranks_close(engine_ranks *ranks)
{
    if (ranks->gpus) cuda_ranks_close(ranks->gpus);
    free(ranks->gpus);
    comm_close(ranks->world);
    *ranks = (engine_ranks){.size = 1};
}

/* Whether mpirun has bound this process to some of the host's processors. */
static bool is_bound(void)
{
    return threads_available() < sysconf(_SC_NPROCESSORS_ONLN);
}

int engine_ranks_threads(const engine_ranks *ranks)
{
    int rank = 0, size = ranks->size;
    if (ranks->world) option_world_host(&rank, &size);
    if (ranks->world && is_bound()) return threads_available();
    const int each = threads_available() / size;
    return each > 0 ? each : 1;
}

void engine_ranks_bind(const engine_ranks *ranks, int threads)
{
    int rank, size;
    if (!ranks->world || is_bound()) return;
    option_world_host(&rank, &size);
    threads_bind(rank, size - 1, threads);
}

int qp_rank(void)
{
    int rank, size;
    return option_world(&rank, &size) ? rank : -1;
}
