/* The GPUs of one host as the ranks of a model: devices that reach each other's memory, and the
 * buffers through which their kernels exchange rows (cuda/exchange.h). */
#ifndef QUIPU_CUDA_RANKS_H
#define QUIPU_CUDA_RANKS_H

#include "cuda/exchange.h"
#include "cuda/memory.h"

/* The longest wait of a kernel for a peer: longer than ranks differ in time, since they load code
 * and record launches at the first pass. */
#define CUDA_RANKS_LIMIT_NS UINT64_C(2000000000)

typedef struct cuda_ranks {
    int n;
    cuda_device own[EXCHANGE_RANKS];      /* of the ranks from 1 on */
    cuda_device *devices[EXCHANGE_RANKS]; /* [rank] */
    cuda_buffer receive[EXCHANGE_RANKS], rounds[EXCHANGE_RANKS];
    cuda_pinned failures; /* a line of 128 bytes for each rank */
    exchange exchanges[EXCHANGE_RANKS];
} cuda_ranks;

/* Bytes that the exchange takes on each GPU. */
size_t cuda_ranks_bytes(int n);

/* Opens the GPUs of the other ranks: those of the numbers gpus[1 .. n), or if `gpus` is NULL the
 * next ones. `first` is the open device of rank 0, and is afterwards current in this thread.
 * cuda_ranks_close() it, also after a failure. */
qp_status cuda_ranks_open(cuda_ranks *out, cuda_device *first, const int *gpus, int n,
                          qp_error *error);
void cuda_ranks_close(cuda_ranks *ranks);

/* QP_DEVICE, with the ranks' names, if a kernel has waited too long for a peer. The GPUs' work up
 * to now has ended. After that the ranks do not agree on the number of rounds and cannot be used.
 */
qp_status cuda_ranks_check(const cuda_ranks *ranks, qp_error *error);

#endif
