/* How the GPU's kernels of operators on rows are launched: rms_norm, add_rms_norm, silu_and_mul,
 * rope. */
#ifndef QUIPU_VM_CUDA_ROWS_H
#define QUIPU_VM_CUDA_ROWS_H

#include "op/device_rows.h"
#include "vm/cuda_ops.h"

/* What a norm's kernel is told; and whether all its rows lie so that a thread takes eight
 * neighbours at once, without which a norm takes several times as long. */
norm_rows cuda_norm_rows(const op_call *call);
norm_rows cuda_add_norm_rows(const op_call *call);
bool cuda_norm_by_eights(const norm_rows *rows);

/* Whether a norm of so many rows, which lie so, takes small blocks. */
bool cuda_norm_is_small(const norm_rows *rows, int64_t n_rows, int n_multiprocessors);

/* rms_norm without a rounding in between, of rows whose length is an int. */
bool cuda_norm_accepts(const op_call *call);
qp_status cuda_norm(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call, qp_error *error);
qp_status cuda_add_norm(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        qp_error *error);

/* By eights where rows lie so, else by elements. Where its output is left in BF16 for the product
 * behind it, nobody else reads it, and it is not written as it is. */
qp_status cuda_silu(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call, qp_error *error);

/* By eights where heads lie so, else by pairs. */
qp_status cuda_rope(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call, qp_error *error);

/* What the kernels of rope and of kv_append are told, and whether eights of both caches lie on
 * vectors. */
rope_rows cuda_rope_rows(const op_call *call);
append_rows cuda_append_rows(const op_call *call);
bool cuda_caches_on_vectors(const append_rows *append);

/* rope and the kv_append of its k behind it, as one launch. */
qp_status cuda_rope_append(cuda_ops *ops, const op_call *rope, const op_call *append,
                           qp_error *error);

#endif
