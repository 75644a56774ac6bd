/* The ranks that an engine runs a model on: see ranks.h. */
#include "engine/ranks.h"

#include "base/option_world.h"

#include <string.h>

enum { MOST_RANKS = 1024 };

static qp_status read_cut(const char *name, plan_cut *out, qp_error *error)
{
    const bool reduce = name && strcmp(name, "reduce") == 0;
    *out = reduce ? PLAN_REDUCE : PLAN_GATHER;
    if (!name || reduce || strcmp(name, "gather") == 0) return QP_OK;
    return error_set(error, QP_INVALID, "ranks cut a model by gather or reduce, found \"%s\"",
                     name);
}

static qp_status open_world(int wanted, engine_ranks *out, qp_error *error)
{
    TRY(comm_mpi_open(&out->world, error));
    out->size = comm_size(out->world);
    if (wanted <= 1 || wanted == out->size) return QP_OK;
    return error_set(error, QP_INVALID,
                     "%d ranks were asked for, but mpirun has started %d; give "
                     "both the same number",
                     wanted, out->size);
}

qp_status engine_ranks_open(const qp_engine_options *o, engine_ranks *out, qp_error *error)
{
    const bool mpi = o->transport && strcmp(o->transport, "mpi") == 0;
    *out = (engine_ranks){.size = o->ranks > 0 ? o->ranks : 1};
    TRY(read_cut(o->cut, &out->cut, error));
    if (o->ranks < 0 || o->ranks > MOST_RANKS)
        return error_set(error, QP_INVALID, "there are 1 to %d ranks, found %d", MOST_RANKS,
                         o->ranks);
    if (o->transport && !mpi && strcmp(o->transport, "threads") != 0)
        return error_set(error, QP_INVALID, "ranks are threads or mpi, found \"%s\"", o->transport);
    return mpi ? open_world(o->ranks, out, error) : QP_OK;
}

void engine_ranks_close(engine_ranks *ranks)
{
    comm_close(ranks->world);
    *ranks = (engine_ranks){.size = 1};
}

int engine_ranks_threads(const engine_ranks *ranks, int available)
{
    const int each = available / ranks->size;
    return each > 0 ? each : 1;
}

int qp_rank(void)
{
    int rank, size;
    return option_world(&rank, &size) ? rank : -1;
}
