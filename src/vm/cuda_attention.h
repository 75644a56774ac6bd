/* Attention on the tensor cores: for cuda_ops.c's table.
 *
 * paged_prefill for caches in F16 or BF16, head_dim 64 or 128 and pages of a multiple of 16
 * positions: with wgmma on compute capability 9.0, with mma.sync elsewhere or by name. Queries and
 * weights are rounded to the cache's type before their products.
 */
#ifndef QUIPU_VM_CUDA_ATTENTION_H
#define QUIPU_VM_CUDA_ATTENTION_H

#include "op/attention/paged_cuda.h"
#include "vm/cuda_ops.h"

bool cuda_prefill_accepts(const op_call *call);
/* Enough tokens that blocks of many rows beat a block for each head of a token. */
bool cuda_prefill_pays(const op_call *call);
extern const op_tolerance cuda_prefill_tolerances[];
qp_status cuda_prefill(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       qp_error *error);

/* The same with mma.sync on any GPU: to be checked and compared, not chosen. */
bool cuda_prefill_mma_pays(const op_call *call);
qp_status cuda_prefill_mma(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                           qp_error *error);

/* The kernels' arguments, from a call of paged_prefill that cuda_prefill_accepts(). */
paged_attention cuda_prefill_arguments(const op_call *call);

/* A kernel of paged_prefill and its launch. */
typedef struct cuda_prefill_launch {
    char function[48];
    int rows, threads, shared_bytes;
    unsigned blocks;
    int helper; /* of cuda_ops.helpers */
} cuda_prefill_launch;
cuda_prefill_launch cuda_prefill_plan(const op_call *call, bool has_wgmma, int n_multiprocessors);

#endif
