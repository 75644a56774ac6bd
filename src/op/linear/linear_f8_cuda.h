/* linear with matrices in FP8 by quipu's own kernels, which take x in FP8 too: linear_f8.cuh and,
 * for up to F8_FEW rows, linear_f8_stream.cuh. */
#pragma once

#include "op/cuda_ops.h"
#include "op/linear/linear_f8.h"

enum { CUDA_F8_NEEDS = CUDA_WGMMA_TILES | CUDA_E4M3 }; /* features, of all products of FP8 */

/* Bytes of a matrix in panels. */
size_t cuda_f8_bytes(int64_t rows, int64_t columns);

/* Arranges a matrix of F8_128 in panels at `to`. */
qp_status cuda_f8_arrange(cuda_ops *ops, const tensor *from, cuda_address to, qp_error *error);

/* What cuBLASLt's products of FP8 (linear_f8_rows_cuda.h) share: a start of a grid of blocks by
 * rows; and the address of x in FP8, where *narrowed is x in BF16 if it has yet to be rounded, and
 * else 0. */
cuda_start cuda_f8_start(const char *image, const char *name, int64_t blocks, int64_t rows,
                         int64_t threads);
qp_status cuda_f8_place_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                          cuda_address *narrowed, cuda_address *at, qp_error *error);

/* Of both kernels: they pay for matrices in panels. */
bool cuda_f8_pays(const cuda_ops *ops, const op_call *call);
size_t cuda_f8_workspace(const op_call *call);
extern const op_tolerance cuda_f8_tolerances[];

/* ---- few rows ------------------------------------------------------------------------------ */

bool cuda_f8_stream_accepts(const op_call *call);
qp_status cuda_f8_stream(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                         const cuda_forms *forms, qp_error *error);

/* With silu_and_mul, whose output is stored only in FP8. */
bool cuda_f8_stream_activates(const cuda_ops *ops, const op_call *calls);
cuda_left cuda_f8_stream_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_f8_stream_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                              qp_error *error);

/* ---- many rows ----------------------------------------------------------------------------- */

bool cuda_f8_wide_accepts(const op_call *call);
qp_status cuda_f8_wide(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error);

/* With silu_and_mul, whose output is then in FP8 in the memory of the product's output. */
bool cuda_f8_wide_activates(const cuda_ops *ops, const op_call *calls);
cuda_left cuda_f8_wide_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_f8_wide_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error);

/* With rope and kv_append, where and as cuda_linear_wide_rope(). */
qp_status cuda_f8_wide_rope(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error);
