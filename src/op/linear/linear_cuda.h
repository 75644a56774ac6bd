/* linear on the GPU: what its kernels' launchers share, and the functions of their rows.
 *
 * There are two kernels for few rows (linear_few, linear_eight), one for batches (linear_stream),
 * one with tiles, and for many rows cuBLASLt or, with the operators that follow, linear_wide.
 */
#pragma once

#include "op/cuda_ops.h"

/* From this many rows of x on it pays to decode weights that are not BF16 before the product. */
enum { CUDA_LINEAR_MANY_ROWS = 64 };

/* Whether eights of a view's rows are at multiples of 16 bytes; or there is no view. */
bool cuda_linear_on_vectors(const tensor *view);

/* Whether a product, of at least a row of x, is stored in float32, as its residual is, and nothing
 * is in F64. */
bool cuda_linear_is_f32(const op_call *call);

/* Room for rows in BF16. */
size_t cuda_linear_bf16_bytes(int64_t rows, int64_t columns);

/* Any number of rows, on the tensor cores with 16 bits of every factor. */
qp_status cuda_linear_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error);

/* The tolerances of products that round x to BF16. */
extern const op_tolerance cuda_linear_narrowed_tolerances[];

/* Whether `silu` is the silu_and_mul of product `call`, both whole, to float32, and nothing else is
 * added to the product. */
bool cuda_linear_is_activated(const op_call *call, const op_call *silu);

/* Adds the call's bias to what its product stored. */
qp_status cuda_linear_add_bias(cuda_ops *ops, const op_call *call, qp_error *error);

/* The address of x in BF16; converts x if that was not done yet. */
qp_status cuda_linear_narrowed_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                                 cuda_address *at, qp_error *error);
