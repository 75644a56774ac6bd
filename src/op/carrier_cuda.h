/* What carries rows between GPUs that do not write to each other's memory: those of several
 * processes or hosts, and ranks that share a GPU.
 *
 *     nccl   sums of NCCL, put into the stream
 *     host   a pass waits at each exchange, copies its rows to the host's memory, and the ranks
 *            exchange them there as ranks on CPUs do (op/exchange.h)
 *
 * NCCL gathers columns as a sum: a rank's part is zeros outside its own columns, and the words are
 * added as integers, which keeps their bits.
 */
#pragma once

#include "comm/comm.h"
#include "cuda/nccl.h"
#include "op/cuda_ops.h"

typedef struct cuda_carrier {
    cuda_device *device;
    comm *group;
    nccl_group *nccl;  /* NULL: through the host's memory */
    cuda_pinned rows;  /* of `host` */
    size_t rows_bytes; /* of it */
    cuda_buffer words; /* of `nccl`: rows of the rank's own columns and zeros */
    qp_error failure;  /* the first one; QP_OK: none */
} cuda_carrier;

/* Bytes on a GPU, besides NCCL's own. */
size_t cuda_carrier_bytes(bool by_nccl);

/* Called by all ranks of the group. cuda_carrier_close() it, also after a failure. */
qp_status cuda_carrier_open(cuda_carrier *carrier, cuda_device *device, comm *group, bool by_nccl,
                            qp_error *error);
void cuda_carrier_close(cuda_carrier *carrier);

/* Records an exchange: `gathers`: columns of all ranks, of which `part` has those from `first` on,
 * else the sum of the ranks' parts. */
qp_status cuda_carry(cuda_ops *ops, const tensor *part, const tensor *out, int64_t first,
                     bool gathers, qp_error *error);

/* Called before a run of passes and after it was waited for. */
void cuda_carrier_begin(cuda_carrier *carrier);
void cuda_carrier_end(cuda_carrier *carrier);

/* Whether an exchange has failed, and why; exchanges after it do nothing. */
qp_status cuda_carrier_check(const cuda_carrier *carrier, qp_error *error);
