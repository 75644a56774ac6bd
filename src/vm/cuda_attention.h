/* Attention on the tensor cores: for cuda_ops.c's table, and for passes of many sequences.
 *
 * paged_prefill for caches in F16 or BF16, head_dim 64 or 128 and pages of a multiple of 16
 * positions: with wgmma on compute capability 9.0, with mma.sync elsewhere or by name. Queries and
 * weights are rounded to the cache's type before their products. ragged_prefill for keys and values
 * like that. paged_decode for the same caches.
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

/* The same of ragged_prefill, whose keys and values lie side by side. */
op_call cuda_prefill_of_ragged(const op_call *ragged);
bool cuda_ragged_accepts(const op_call *call);
bool cuda_ragged_pays(const op_call *call);
qp_status cuda_ragged(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                      qp_error *error);

/* paged_prefill with mma.sync on any GPU: to be checked and compared, not chosen. */
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

/* paged_decode of many sequences. Parts of long ones are merged by the block that comes last, which
 * is counted in the workspace. */
bool cuda_decode_accepts(const op_call *call);
bool cuda_decode_pays(const op_call *call);
extern const op_tolerance cuda_decode_tolerances[];
size_t cuda_decode_workspace(const op_call *call);
qp_status cuda_decode(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                      qp_error *error);

/* paged_decode of few sequences: the same kernel, but each is cut into so many parts that they fill
 * the GPU. A pass does not take it: how a prompt of few tokens is cut must not change its bits. */
bool cuda_decode_few_pays(const op_call *call);
size_t cuda_decode_few_workspace(const op_call *call);
qp_status cuda_decode_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error);

/* The workspace when no sequence is longer than `longest`. */
size_t cuda_decode_workspace_of(const op_call *call, int64_t longest);

/* Parts that a sequence of so many positions is cut into. */
int64_t cuda_decode_chunks(int64_t longest);

/* A call of paged_prefill as one of paged_decode: where every sequence has one token. */
op_call cuda_decode_of_prefill(const op_call *prefill);

#endif
