/* The GPU's kernels as variants of their operators, so that they are held to all that a CPU's are.
 *
 * A call's tensors are carried to the GPU and back at every call, between guards and aligned no
 * better than they were, one call at a time.
 */
#ifndef QUIPU_WORKBENCH_DEVICE_H
#define QUIPU_WORKBENCH_DEVICE_H

#include "op/op.h"
#include "op/cuda_ops.h"

/* QP_DEVICE, as the fault of `what`, where there is no GPU. The driver is not asked: it is left to
 * child processes, since it does not survive a fork. */
qp_status device_is_here(const char *what, qp_error *error);

/* Opens the GPU for this process; device_close() it, also after a failure. */
qp_status device_open(qp_error *error);
void device_close(void);

/* The kernel as a variant, until the next call: one at a time. */
op_variant device_variant(const cuda_kernel *kernel);

/* What went wrong on the GPU since the last call of this; QP_OK if nothing did. */
qp_status device_failure(qp_error *error);

/* The GPU and its kernels, for those who time them. */
cuda_device *device_gpu(void);
cuda_ops *device_ops(void);

#endif
