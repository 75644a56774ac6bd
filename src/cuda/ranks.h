/* The GPUs of a model's ranks. Those of one process reach each other's memory, and have buffers
 * through which their kernels exchange rows (cuda/exchange.h), or leave that to a carrier
 * (op/carrier_cuda.h). */
#pragma once

#include "cuda/exchange.h"
#include "cuda/memory.h"

/* The longest wait of a kernel for a peer: longer than ranks differ in time, since they load code
 * and record launches at the first pass. */
#define CUDA_RANKS_LIMIT_NS UINT64_C(2000000000)

/* How ranks exchange rows. */
typedef enum cuda_exchange_by {
    CUDA_BY_AUTO,
    CUDA_BY_PEERS, /* kernels write to each other's memory */
    CUDA_BY_NCCL,
    CUDA_BY_HOST,   /* through the host's memory */
    CUDA_BY_BESIDE, /* for tests: as peers, on one GPU, if the ranks' kernels fit beside each other
                     */
} cuda_exchange_by;

typedef struct cuda_ranks {
    int n;
    cuda_exchange_by by;
    bool apart; /* ranks are processes: of the others nothing is known here, nor kept below */
    cuda_device own[EXCHANGE_RANKS];      /* of the ranks from 1 on */
    cuda_device *devices[EXCHANGE_RANKS]; /* [rank] */
    cuda_buffer receive[EXCHANGE_RANKS], rounds[EXCHANGE_RANKS];
    cuda_pinned failures; /* a line of 128 bytes for each rank */
    exchange exchanges[EXCHANGE_RANKS];
} cuda_ranks;

/* Bytes that the exchange takes on each GPU. */
size_t cuda_ranks_bytes(int n);

/* Opens the GPUs of the other ranks: those of the numbers gpus[1 .. n), or if `gpus` is NULL the
 * next ones. `first` is the open device of rank 0, and is afterwards current in this thread. With
 * CUDA_BY_AUTO, out->by is CUDA_BY_PEERS if all GPUs are different ones and reach each other; else
 * CUDA_BY_HOST if ranks share one, else what is there. cuda_ranks_close() it, also after a failure.
 */
qp_status cuda_ranks_open(cuda_ranks *out, cuda_device *first, const int *gpus, int n,
                          cuda_exchange_by by, qp_error *error);

/* What each rank that is a process tells the others, and what they choose from it. */
typedef struct cuda_rank_facts {
    char uuid[CUDA_UUID_BYTES];
    int32_t nccl; /* its version; 0: it is not there */
    int32_t by;   /* as asked for */
} cuda_rank_facts;

/* Those of this process. */
qp_status cuda_ranks_describe(const cuda_device *device, cuda_exchange_by by, cuda_rank_facts *out,
                              qp_error *error);

/* Called by all with the facts of all, [n]: `first` is this process's device. */
qp_status cuda_ranks_meet(cuda_ranks *out, cuda_device *first, const cuda_rank_facts *facts, int n,
                          qp_error *error);

void cuda_ranks_close(cuda_ranks *ranks);

/* The most ranks that one GPU runs; the same number for all ranks, since they launch the same
 * number of blocks. */
int cuda_ranks_beside(const cuda_ranks *ranks);

/* QP_DEVICE, with the ranks' names, if a kernel has waited too long for a peer. The GPUs' work up
 * to now has ended. After that the ranks do not agree on the number of rounds and cannot be used.
 */
qp_status cuda_ranks_check(const cuda_ranks *ranks, qp_error *error);
