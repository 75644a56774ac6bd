/* Copies of rows to other GPUs of the host while kernels run: a stream of its own, whose copies
 * take no multiprocessor.
 *
 * Starting a copy to another GPU locks that GPU's context. Another thread may hold the lock until
 * its GPU is idle, for example while it loads code, and that GPU may be waiting for rows of this
 * one. So a rank starts a kernel that waits for copies only after the threads of all ranks have
 * started their copies.
 */
#pragma once

#include "comm/comm.h"
#include "op/cuda_ops.h"

typedef struct cuda_pusher {
    const cuda_device *device;
    comm *group; /* of the ranks' threads */
    cuda_stream stream;
    cuda_event made, sent; /* the rows of the last copy; the copy */
} cuda_pusher;

qp_status cuda_pusher_open(cuda_pusher *pusher, const cuda_device *device, comm *group,
                           qp_error *error);
void cuda_pusher_close(cuda_pusher *pusher);

/* Records a copy of `bytes` to another GPU. */
qp_status cuda_push(cuda_ops *ops, cuda_address from, cuda_address to, size_t bytes,
                    qp_error *error);

/* Records a wait for all copies so far, and for the other ranks' threads. */
qp_status cuda_push_wait(cuda_ops *ops, qp_error *error);
