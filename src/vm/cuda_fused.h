/* How the GPU's kernels of fused operators are launched. */
#ifndef QUIPU_VM_CUDA_FUSED_H
#define QUIPU_VM_CUDA_FUSED_H

#include "vm/cuda_ops.h"

/* Calls whose KV head's outputs fit in the memory that a block has. */
bool cuda_attention_output_accepts(const op_call *call);

/* Kernels that multiply: blocks for one row, or for four at a time. */
qp_status cuda_fused_rows(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error);

/* A block a unit of attention, query head and token. */
qp_status cuda_attention_partial(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                                 qp_error *error);

#endif
