/* The ranks that an engine runs a model on. */
#pragma once

#include "comm/comm.h"
#include "cuda/ranks.h"
#include "plan/program.h"
#include "quipu.h"

typedef struct engine_ranks {
    int size; /* 1: the model is not cut */
    plan_cut cut;
    comm
        *world; /* this process's place among those that mpirun has started; NULL: ranks are threads
                 */
    bool cut_chosen;                        /* `cut` was asked for */
    int numbers[EXCHANGE_RANKS], n_numbers; /* of GPUs, as asked for; 0: none were named */
    cuda_exchange_by exchange;              /* of GPUs, as asked for */
    cuda_ranks *gpus;                       /* of several ranks on GPUs; NULL: there are none */
} engine_ranks;

/* Reads the options, and opens MPI if ranks are processes. engine_ranks_close() it, also after a
 * failure. */
qp_status engine_ranks_open(const qp_engine_options *options, engine_ranks *out, qp_error *error);
void engine_ranks_close(engine_ranks *ranks);

/* Opens the GPU of the first rank; then those of the others, if there are several: `first` is that
 * of the first rank. */
qp_status engine_ranks_device(const engine_ranks *ranks, cuda_device *out, qp_error *error);
qp_status engine_ranks_connect(engine_ranks *ranks, cuda_device *first, qp_error *error);

/* For tests: "peers" are ranks beside each other on one GPU, CUDA_BY_BESIDE. */
extern bool engine_ranks_beside;

/* Numbers of GPUs, such as "0,2", and how GPUs exchange rows; NULL: as if they were not given. */
qp_status engine_ranks_read_gpus(const char *gpus, const char *exchange, engine_ranks *out,
                                 qp_error *error);

/* Tells the other processes, if there are any, that this one cannot go on. */
void engine_ranks_abort(const engine_ranks *ranks, const char *why);

/* How many threads a rank gets by default: those of the processors that it may use, which ranks of
 * one host share, unless mpirun has given each its own. */
int engine_ranks_threads(const engine_ranks *ranks);

/* Gives this process processors of its own for that many threads, if ranks are processes that may
 * all use the same ones. */
void engine_ranks_bind(const engine_ranks *ranks, int threads);
