/* Runs the GPU's kernels as variants of their operators, so that the same checks apply to them as
 * to CPU kernels.
 *
 * Every call copies its tensors to the GPU and back, with guards around them and no better aligned
 * than on the host. One call at a time.
 */
#pragma once

#include "op/table.h"
#include "op/cuda_ops.h"

/* QP_DEVICE, naming `what`, if there is no GPU. Does not initialise the driver, because the driver
 * does not survive a fork; child processes do that. */
qp_status device_is_here(const char *what, qp_error *error);

/* Opens the GPU for this process; device_close() it, also after a failure. */
qp_status device_open(qp_error *error);
void device_close(void);

/* Makes a variant of the kernel. It is valid until the next call. */
op_variant device_variant(const cuda_kernel *kernel);

/* The first error on the GPU since the last call of this function; QP_OK if there was none. */
qp_status device_failure(qp_error *error);

/* The GPU and its kernels, for measurements. */
cuda_device *device_gpu(void);
cuda_ops *device_ops(void);
