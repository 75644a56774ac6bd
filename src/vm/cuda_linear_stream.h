/* linear for batches of 9 to 64 rows by quipu's own kernel, linear_stream.cuh. */
#ifndef QUIPU_VM_CUDA_LINEAR_STREAM_H
#define QUIPU_VM_CUDA_LINEAR_STREAM_H

#include "op/linear/linear_stream.h"
#include "vm/cuda_ops.h"

/* How many blocks a tile of a weight is shared by: never depends on the number of rows of x. */
int cuda_stream_ranks(int64_t tiles, int64_t n_steps, int n_multiprocessors);

bool cuda_linear_stream_runs_on(const cuda_device *device); /* elsewhere tiles serve */
bool cuda_linear_stream_accepts(const op_call *call);
bool cuda_linear_stream_pays(const op_call *call);
size_t cuda_linear_stream_workspace(const op_call *call);
qp_status cuda_linear_stream(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             qp_error *error);

/* Whether the silu_and_mul of a product's output can be made with it, for a product that takes it
 * in BF16 alone. */
bool cuda_linear_stream_activates(const cuda_ops *ops, const op_call *call, const op_call *silu);

/* Both; what silu_and_mul would write is left in BF16 only, where the next product looks for it. */
qp_status cuda_linear_stream_silu(cuda_ops *ops, const op_call *call, const op_call *silu,
                                  qp_error *error);

#endif
